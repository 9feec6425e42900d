// Search in pages that are opened as files: browsers start no worker from file://, so the theme's search worker runs in
// a hidden frame instead. Only what that worker needs: messages both ways. Served pages keep real workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === this.inside) {
          const copy = new MessageEvent("message", { data: event.data });
          this.dispatchEvent(copy);
          if (this.onmessage) this.onmessage(copy);
        }
      });
      const page = this.inside.document;
      page.open();
      page.write('<script>postMessage = (data) => parent.postMessage(data, "*")</scr' + 'ipt><script src="' + url + '"></scr' + "ipt>");
      page.close();
      this.ready = new Promise((resolve) => this.inside.addEventListener("load", resolve));
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
