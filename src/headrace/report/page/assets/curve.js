"use strict";
/* Lines over steps, such as losses; they differ by dash and by the name at their end as well as by colour.

   Curve.draw(element, {x: "step", y: "loss in nats per byte",
                        lines: [{name: "trained", points: [[1, 5.5], …]}, {name: "held out", points: […]}]});          */
const Curve = (() => {
  const [LEFT, RIGHT, TOP, BOTTOM] = [44, 12, 10, 34];
  const made = new WeakMap();

  class Chart {
    constructor(element) {
      this.canvas = document.createElement("canvas");
      this.canvas.setAttribute("role", "img");
      this.legend = document.createElement("ul");
      this.legend.className = "legend";
      element.classList.add("curve");
      element.replaceChildren(this.legend, this.canvas);
      this.picture = Picture.on(this.canvas, (...all) => this.paint(...all));
      this.picture.height = 240;
    }

    set({ x, y, lines }) {
      Object.assign(this, { xName: x, yName: y, lines });
      const items = lines.map(({ name }, i) => {
        const item = document.createElement("li");
        const swatch = document.createElement("span");
        swatch.className = `stroke stroke-${i}`;
        item.append(swatch, name);
        return item;
      });
      this.legend.replaceChildren(...items);
      const ends = lines.map(({ name, points }) => `${name}: ${points.length ? this.fromTo(points) : "nothing"}`);
      this.canvas.setAttribute("aria-label", `${y} over ${x}; ${ends.join("; ")}`);
      this.picture.again();
    }

    fromTo(points) {
      return `${Units.number(points[0][1])} to ${Units.number(points[points.length - 1][1])}`;
    }

    paint(brush, width, height, colour) {
      const all = this.lines.flatMap(({ points }) => points);
      if (!all.length) return;
      const range = (values) => [Math.min(...values), Math.max(...values)];
      const [x0, x1] = range(all.map(([x]) => x));
      const [low, high] = range(all.map(([, y]) => y));
      const spare = 0.05 * (high - low || Math.abs(high) || 1);
      const [y0, y1] = [low - spare, high + spare];
      const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
      const y = (value) => height - BOTTOM - ((value - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
      this.paintGrid(brush, { x, y, x0, x1, y0, y1, width, height }, colour);
      this.lines.forEach(({ points }, i) => {
        brush.strokeStyle = brush.fillStyle = colour(`line-${i}`);
        brush.lineWidth = i ? 2.5 : 1.5;
        brush.setLineDash(i ? [7, 4] : []);
        brush.beginPath();
        points.forEach(([a, b], at) => (at ? brush.lineTo(x(a), y(b)) : brush.moveTo(x(a), y(b))));
        brush.stroke();
        brush.setLineDash([]);
        if (points.length <= 40) points.forEach(([a, b]) => brush.fillRect(x(a) - 2.5, y(b) - 2.5, 5, 5));
      });
    }

    paintGrid(brush, { x, y, x0, x1, y0, y1, width, height }, colour) {
      brush.strokeStyle = colour("line");
      brush.fillStyle = colour("quiet");
      brush.lineWidth = 1;
      brush.beginPath();
      brush.textAlign = "right";
      for (const tick of Units.ticks(y0, y1, height / 50)) {
        const at = Math.round(y(tick)) + 0.5;
        brush.moveTo(LEFT, at);
        brush.lineTo(width - RIGHT, at);
        brush.fillText(Units.number(tick), LEFT - 6, at);
      }
      brush.stroke();
      brush.textAlign = "center";
      for (const tick of Units.ticks(x0, x1, width / 90)) {
        if (x(tick) < width - RIGHT - 20) brush.fillText(Units.number(tick), x(tick), height - BOTTOM + 12);
      }
      brush.textAlign = "right";
      brush.fillText(this.xName, width - RIGHT, height - BOTTOM + 12);
    }
  }

  function draw(element, data) {
    if (!made.has(element)) made.set(element, new Chart(element));
    made.get(element).set(data);
  }

  return { draw };
})();
