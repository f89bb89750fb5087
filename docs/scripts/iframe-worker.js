// Browsers refuse workers on pages that were opened from disk. Search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  // The theme looks for the name IFrameWorker to find its own files.
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        };
        inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => new Promise((done, failed) => {
          const more = inside.document.createElement("script");
          more.src = new URL(one, url);
          more.onload = done;
          more.onerror = failed;
          inside.document.body.appendChild(more);
        })), Promise.resolve());
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
