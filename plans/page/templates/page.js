// Draws every chart of the page from the JSON beside its box, in the colours of the reader's theme.
(() => {
  "use strict";
  const STAND_INS = ["", "--ink", "--muted", "--track", "--panel", "--line"]; // palette.py
  const CONFIG = { displayModeBar: false, responsive: true, showTips: false };
  const boxes = () => [...document.querySelectorAll(".chart")];

  function drawn(box) {
    const style = getComputedStyle(document.body);
    const text = box.nextElementSibling.textContent.replace(/#0([1-5])0(?:\1)0(?:\1)/g, (_, digit) =>
      style.getPropertyValue(STAND_INS[digit]).trim());
    const figure = JSON.parse(text);
    // A finger that scrolls the page must not zoom a chart.
    figure.layout.uirevision = "reader"; // what the reader zoomed stays so when the chart is drawn anew
    figure.layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    return Plotly.react(box, figure.data, figure.layout, CONFIG);
  }

  const draw = () => Promise.all(boxes().map(drawn));
  draw().then(() => { document.body.dataset.drawn = boxes().length; });
  window.drawChart = drawn; // for live.js

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const print = (on) => { document.body.classList.toggle("printed", on); draw(); boxes().forEach((box) => Plotly.Plots.resize(box)); };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
