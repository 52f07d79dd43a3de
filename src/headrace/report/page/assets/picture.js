"use strict";
/* A canvas that stays sharp and is painted again when its place, the theme, or screen and paper change.

   const picture = Picture.on(canvas, (brush, width, height, colour) => …);   width, height in CSS px
   picture.height = 120;        how high it is
   picture.again();             paints in the next frame, once, however often it is called
                                                                                                                       */
const Picture = (() => {
  const all = new Set();

  /* The value of a colour of style.css, such as colour("ink"), as it is now. */
  function colours() {
    const style = getComputedStyle(document.documentElement);
    const known = new Map();
    return (name) => {
      if (!known.has(name)) known.set(name, style.getPropertyValue(`--${name}`).trim());
      return known.get(name);
    };
  }

  class OnCanvas {
    constructor(canvas, paint) {
      this.canvas = canvas;
      this.paint = paint;
      this.height = 100;
      this.waiting = false;
      new ResizeObserver(() => this.again()).observe(canvas);
      all.add(this);
    }

    again() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => this.now());
    }

    now() {
      this.waiting = false;
      if (!this.canvas.isConnected) {
        all.delete(this);
        return;
      }
      this.canvas.style.height = `${this.height}px`;
      const width = this.canvas.clientWidth;
      if (!width) return;
      const sharp = Math.max(matchMedia("print").matches ? 3 : 1, devicePixelRatio || 1);
      const [across, down] = [Math.round(width * sharp), Math.round(this.height * sharp)];
      if (this.canvas.width !== across) this.canvas.width = across;
      if (this.canvas.height !== down) this.canvas.height = down;
      const brush = this.canvas.getContext("2d");
      brush.setTransform(sharp, 0, 0, sharp, 0, 0);
      brush.clearRect(0, 0, width, this.height);
      brush.font = "12px system-ui, sans-serif";
      brush.textBaseline = "middle";
      this.paint(brush, width, this.height, colours());
    }
  }

  const allAtOnce = () => all.forEach((picture) => picture.now());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", allAtOnce);
  matchMedia("print").addEventListener("change", allAtOnce); // at once, as the printer does not wait for a frame
  addEventListener("beforeprint", allAtOnce);

  return { on: (canvas, paint) => new OnCanvas(canvas, paint) };
})();
