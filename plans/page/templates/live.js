// Follows the server that the page came from: on each event the content is fetched, and what differs is swapped.
(() => {
  "use strict";
  const LOST_MS = 15000; // the server tells something each 5 s
  const SHARE = 4; // at most one part in so many of the time goes into fetching and drawing
  const line = document.querySelector(".live");
  let shown = null, wanted = null, busy = false, watchdog = 0;

  // Places where old and new are alike go on as they are: a reader's scroll, zoom and open details stay.
  const sources = new WeakMap();
  const source = (node) => sources.get(node) ?? node.outerHTML ?? node.nodeValue;
  const remember = (node, text) => { if (node.nodeType === 1) sources.set(node, text); };
  const kept = (node) => [...node.childNodes].filter((child) => child.nodeType === 1 || child.nodeValue.trim());
  const inside = (node) => ["MAIN", "SECTION", "DIV", "DETAILS", "HEADER", "FIGURE"].includes(node.nodeName) &&
    !node.classList.contains("chart") && node.nodeName;
  const alike = (a, b) => a.nodeName === b.nodeName && a.id === b.id && a.className === b.className;

  function merge(old, fresh) {
    const olds = kept(old), news = kept(fresh);
    news.forEach((node, place) => {
      const before = olds[place];
      if (before === undefined) { old.append(node); node.querySelectorAll?.(".chart").forEach(drawChart); }
      else if (before !== line) swap(before, node);
    });
    olds.slice(news.length).forEach((node) => node.remove());
  }

  function swap(before, node) {
    const text = source(node);
    if (source(before) === text) return;
    const charted = node.nodeName === "FIGURE" && kept(before).length !== kept(node).length; // one of them has a legend
    if (node.nodeType === 1 && before.nodeType === 1 && alike(before, node) && inside(node) && !charted) {
      const redraw = node.nodeName === "FIGURE" && before.querySelector("script").textContent !== node.querySelector("script").textContent;
      merge(before, node);
      if (redraw) { const box = before.querySelector(".chart"); box.style.height = node.querySelector(".chart").style.height; drawChart(box); }
    } else if (node.nodeType === 1 && node.classList.contains("chart") && before.nodeType === 1 && before.classList.contains("chart")) {
      before.setAttribute("aria-label", node.getAttribute("aria-label"));
    } else {
      before.replaceWith(node);
      node.querySelectorAll?.(".chart").forEach(drawChart);
    }
    remember(before.isConnected ? before : node, text);
  }

  async function update() {
    if (busy || document.hidden || wanted === shown) return;
    busy = true;
    const began = performance.now(), version = wanted;
    try {
      const answer = await fetch("content");
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      merge(document.querySelector("main"), new DOMParser().parseFromString(text, "text/html").querySelector("main"));
      shown = version;
    } catch { lost(); }
    setTimeout(() => { busy = false; update(); }, SHARE * (performance.now() - began));
  }

  const tell = (state, text) => { line.className = "live " + state; line.textContent = text; };
  const lost = () => tell("lost", "connection lost; trying again. What is shown is the last that came.");
  const alive = () => { clearTimeout(watchdog); watchdog = setTimeout(lost, LOST_MS); };

  const events = new EventSource("events");
  events.onmessage = (message) => {
    alive();
    const news = JSON.parse(message.data);
    tell(news.ended ? "" : "on", news.text);
    wanted = news.version;
    update();
    if (news.closing) { events.close(); clearTimeout(watchdog); }
  };
  events.onerror = () => { clearTimeout(watchdog); lost(); };
  addEventListener("visibilitychange", update);
  addEventListener("pagehide", () => events.close());
})();
