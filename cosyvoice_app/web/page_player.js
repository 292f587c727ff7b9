// Plays a result while it is made. The server names a running request's stream in the page (data-stream); what comes is
// 16-bit PCM, and each piece is started on the very sample at which the one before it ends.
(() => {
  if (!window.AudioContext) return; // the finished file has its own player
  const LEAD_S = 0.1; // between the first sound's arrival and its start, and again after a wait for more
  const MARGIN_S = 0.03; // a piece due sooner might reach the sound card too late and overlap the next
  const FADE_S = 0.02;
  const ALLOWED_S = 1; // a browser that hasn't let the page sound by then won't
  let context = null;
  let current = null;
  let token = "";

  const wanted = () => {
    const box = document.querySelector("#listen input");
    return !box || box.checked;
  };

  const tell = (state) => { document.documentElement.dataset.live = state; };

  // At the stream's own rate, so that nothing is resampled. Browsers let a page sound only after a click on it.
  const contextAt = (rate) => {
    if (!context || context.sampleRate !== rate) {
      if (context) context.close();
      context = new AudioContext({ sampleRate: rate, latencyHint: "playback" });
    }
    if (context.state !== "running") context.resume().catch(() => {});
    return context;
  };

  // The time of a frame. A hair too early, by rounding, and the browser would interpolate between samples.
  const timeOf = (frame, rate) => {
    const time = frame / rate;
    return time * rate < frame ? time * (1 + 2 * Number.EPSILON) : time;
  };

  class Playback {
    constructor() {
      this.fetching = new AbortController();
      this.nodes = new Set();
      this.next = 0; // the frame at which the next piece starts
      this.whole = false;
    }

    async run(name) {
      const answer = await fetch(`page/stream/${name}`, { cache: "no-store", signal: this.fetching.signal });
      if (answer.status !== 200) return;
      const rate = Number(answer.headers.get("X-Sample-Rate"));
      this.context = contextAt(rate);
      this.volume = this.context.createGain();
      this.volume.connect(this.context.destination);
      const reader = answer.body.getReader();
      let odd = new Uint8Array(0);
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const bytes = new Uint8Array(odd.length + value.length);
        bytes.set(odd);
        bytes.set(value, odd.length);
        const even = bytes.length & ~1;
        odd = bytes.slice(even);
        if (even) this.play(new DataView(bytes.buffer, 0, even), rate);
      }
      this.whole = true;
      this.settle();
      setTimeout(() => { if (current === this && this.context.state !== "running") stop(); }, 1000 * ALLOWED_S);
    }

    play(view, rate) {
      const count = view.byteLength / 2;
      const buffer = this.context.createBuffer(1, count, rate);
      const samples = buffer.getChannelData(0);
      for (let i = 0; i < count; i += 1) samples[i] = view.getInt16(2 * i, true) / 32768;
      const node = this.context.createBufferSource();
      node.buffer = buffer;
      node.connect(this.volume);
      const now = this.context.currentTime;
      if (this.next < (now + MARGIN_S) * rate) this.next = Math.ceil((now + LEAD_S) * rate);
      node.start(timeOf(this.next, rate));
      this.next += count;
      this.nodes.add(node);
      node.onended = () => { this.nodes.delete(node); this.settle(); };
      tell("playing");
    }

    settle() {
      if (this.whole && !this.nodes.size && current === this) { current = null; tell("done"); }
    }

    stop() {
      this.fetching.abort();
      if (!this.volume) return;
      const now = this.context.currentTime;
      this.volume.gain.setValueAtTime(1, now);
      this.volume.gain.linearRampToValueAtTime(0, now + FADE_S);
      for (const node of this.nodes) { node.onended = null; node.stop(now + FADE_S); }
    }
  }

  const stop = () => {
    if (!current) return;
    current.stop();
    current = null;
    tell("stopped");
  };

  const start = () => {
    stop();
    const mine = new Playback();
    current = mine;
    // A stream that breaks off is a request that failed: the page says why, and what is left isn't played.
    mine.run(token).catch(() => { if (current === mine) stop(); });
  };

  const running = () => document.querySelector("#summary [data-stream]");

  new MutationObserver(() => {
    const found = running();
    if (!found || found.dataset.stream === token) return;
    token = found.dataset.stream;
    if (wanted()) start();
  }).observe(document.documentElement, { childList: true, subtree: true });

  document.addEventListener("click", (event) => {
    const pressed = (id) => event.target instanceof Element && event.target.closest(id);
    if (pressed("#generate")) {
      stop();
      const line = document.querySelector("#status-line");
      if (wanted()) contextAt(Number(line && line.dataset.rateHz) || 24000);
    } else if (pressed("#stop") || (pressed("#result") && !pressed("a"))) {
      stop(); // the finished file is played by its own player
    }
  }, true);

  document.addEventListener("change", (event) => {
    if (!(event.target instanceof Element && event.target.closest("#listen"))) return;
    if (!wanted()) stop();
    else if (running()) start();
  });
})();
