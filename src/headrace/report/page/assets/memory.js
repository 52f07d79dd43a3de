"use strict";
/* Bytes that each rank holds over the time of a step: one row per rank, all on one scale.

       rank 0  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ limit
                  ▁▂▃▄▄▄▃▂▁
       rank 1  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
                    ▁▂▂▂▂▁

   Memory.draw(element, {
     end: 0.217,                                          seconds of the step (optional: the last point)
     ranks: [{name: "rank 0", points: [[0, bytes], …],    each holds until the next
              limit: bytes}],                             or null if there is none
   });                                                                                                                 */
const Memory = (() => {
  const [RIGHT, AXIS, GAP] = [10, 24, 8];
  const made = new WeakMap();

  class Chart {
    constructor(element) {
      this.canvas = document.createElement("canvas");
      this.canvas.setAttribute("role", "img");
      this.table = document.createElement("div");
      this.table.className = "scroll";
      element.classList.add("memory");
      element.replaceChildren(this.canvas, this.table);
      this.picture = Picture.on(this.canvas, (...all) => this.paint(...all));
    }

    set({ ranks, end }) {
      const last = Math.max(...ranks.map(({ points }) => (points.length ? points[points.length - 1][0] : 0)));
      this.end = end || last || 1;
      this.ranks = ranks.map((rank) => ({ ...rank, peak: Math.max(0, ...rank.points.map(([, bytes]) => bytes)) }));
      this.top = 1.08 * Math.max(1, ...this.ranks.map(({ peak, limit }) => Math.max(peak, limit || 0)));
      this.row = Math.min(72, Math.max(16, Math.floor(480 / ranks.length)));
      this.picture.height = ranks.length * this.row + AXIS;
      const words = this.ranks.map(({ name, peak }) => `${name} ${Units.bytes(peak)}`).join(", ");
      this.canvas.setAttribute("aria-label", `Memory over time. The most that each holds: ${words}`);
      this.fillTable();
      this.picture.again();
    }

    paint(brush, width, height, colour) {
      const left = Math.ceil(Math.max(...this.ranks.map(({ name }) => brush.measureText(name).width))) + 14;
      const columns = width - left - RIGHT;
      const x = (moment) => left + (moment / this.end) * columns;
      this.ranks.forEach((rank, i) => {
        const bottom = (i + 1) * this.row - GAP / 2;
        const y = (bytes) => bottom - (bytes / this.top) * (this.row - GAP);
        brush.fillStyle = colour("row");
        brush.fillRect(left, bottom - this.row + GAP, columns, this.row - GAP);
        this.paintHeld(brush, rank, x, y, bottom, colour);
        if (rank.limit) this.paintLimit(brush, y(rank.limit), left, columns, colour);
        brush.fillStyle = colour("ink");
        brush.textAlign = "right";
        brush.fillText(rank.name, left - 8, bottom - (this.row - GAP) / 2);
      });
      this.paintAxis(brush, x, height - AXIS, colour);
    }

    paintHeld(brush, { points, peak }, x, y, bottom, colour) {
      brush.beginPath();
      brush.moveTo(x(0), bottom);
      let before = bottom;
      for (const [moment, bytes] of points) {
        brush.lineTo(x(moment), before);
        before = y(bytes);
        brush.lineTo(x(moment), before);
      }
      brush.lineTo(x(this.end), before);
      brush.lineTo(x(this.end), bottom);
      brush.closePath();
      brush.fillStyle = colour("memory");
      brush.fill();
      brush.fillStyle = colour("ink");
      if (this.row < 30) return;
      brush.textAlign = "left";
      brush.fillText(Units.bytes(peak), x(0) + 6, Math.min(bottom - 8, y(peak) + 9));
    }

    paintLimit(brush, y, left, columns, colour) {
      brush.strokeStyle = brush.fillStyle = colour("critical");
      brush.lineWidth = 1.5;
      brush.setLineDash([6, 4]);
      brush.beginPath();
      brush.moveTo(left, y);
      brush.lineTo(left + columns, y);
      brush.stroke();
      brush.setLineDash([]);
      brush.textAlign = "right";
      if (this.row >= 30) brush.fillText("limit", left + columns - 4, y + 9);
    }

    paintAxis(brush, x, y, colour) {
      const [sign, inSeconds] = Units.timeUnit(this.end);
      brush.fillStyle = brush.strokeStyle = colour("quiet");
      brush.textAlign = "center";
      brush.lineWidth = 1;
      brush.beginPath();
      const columns = x(this.end) - x(0);
      for (const tick of Units.ticks(0, this.end / inSeconds, columns / 90)) {
        const at = Math.round(x(tick * inSeconds)) + 0.5;
        brush.moveTo(at, y);
        brush.lineTo(at, y + 5);
        if (at < x(this.end) - 4) brush.fillText(Units.number(tick), at, y + 14);
      }
      brush.stroke();
      brush.textAlign = "right";
      brush.fillText(sign, x(0) - 8, y + 14);
    }

    fillTable() {
      const limited = this.ranks.some(({ limit }) => limit);
      const head = ["rank", "most", "at", ...(limited ? ["limit", "used"] : [])];
      const rows = this.ranks.map(({ name, points, peak, limit }) => {
        const [at] = points.find(([, bytes]) => bytes === peak) || [0];
        const against = limit ? [Units.bytes(limit), Units.percent(peak / limit)] : ["–", "–"];
        return [name, Units.bytes(peak), Units.seconds(at), ...(limited ? against : [])];
      });
      this.table.replaceChildren(Tables.of(head, rows));
    }
  }

  function draw(element, data) {
    if (!made.has(element)) made.set(element, new Chart(element));
    made.get(element).set(data);
  }

  return { draw };
})();
