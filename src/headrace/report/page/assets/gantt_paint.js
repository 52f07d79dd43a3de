"use strict";
/* How a Gantt chart is painted: one row per rank, time from left to right.

       rank 0  ▐F0▌▐F1▌····▐B0    ▌▐B1    ▌
       rank 1      ▐F0▌▐B0    ▌▐F1▌…                   ▔ along the top of a block: it is on the critical path

   Only what is in view is visited. Blocks that are narrower than a pixel are added up per pixel, each kind to the share
   of the pixel's height that it has of the pixel's time, so that a hundred thousand of them look like what they are: a
   texture of so much forward, so much backward and so much idle.                                                      */
const GanttPaint = (() => {
  const RIGHT = 10;
  const AXIS = 24;
  const TOP = 2;

  const rowHeight = (ranks) => Math.min(36, Math.max(7, Math.floor(420 / Math.max(1, ranks))));
  const heightOf = (ranks) => TOP + ranks * rowHeight(ranks) + AXIS;

  /* Where things are on the canvas; the same for painting and for finding what is under the pointer. */
  class Frame {
    constructor(view, tracks, left, width) {
      this.view = view;
      this.left = left;
      this.columns = Math.max(1, width - left - RIGHT);
      this.row = rowHeight(tracks.length);
      this.scale = this.columns / (view.to - view.from);
      this.bottom = TOP + tracks.length * this.row;
    }

    x(moment) {
      return this.left + (moment - this.view.from) * this.scale;
    }

    moment(x) {
      return this.view.from + (x - this.left) / this.scale;
    }

    y(rank) {
      return TOP + rank * this.row;
    }

    rank(y) {
      return Math.floor((y - TOP) / this.row);
    }
  }

  /* The first span of a track that ends after `moment`. */
  function firstAfter(track, moment) {
    let low = 0;
    let high = track.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (track.ends[middle] > moment) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function paint(brush, frame, chart, state, colour) {
    const { view } = frame;
    brush.fillStyle = colour("row");
    for (let rank = 0; rank < chart.tracks.length; rank++) {
      brush.fillRect(frame.left, frame.y(rank) + 1, frame.columns, frame.row - 2);
    }
    brush.save();
    brush.beginPath();
    brush.rect(frame.left, 0, frame.columns, frame.bottom + 1);
    brush.clip();
    chart.tracks.forEach((track, rank) => paintTrack(brush, frame, chart, track, rank, state, colour));
    if (state.critical) paintChain(brush, frame, chart, colour);
    if (chart.end < view.end) paintEnd(brush, frame, chart, colour);
    if (state.at !== null) paintChosen(brush, frame, chart, state.at, colour);
    brush.restore();
    paintNames(brush, frame, chart, colour);
    paintAxis(brush, frame, colour);
  }

  function paintTrack(brush, frame, chart, track, rank, state, colour) {
    const { view } = frame;
    const y = frame.y(rank) + 1;
    const height = frame.row - 2;
    const crowd = new Crowd(brush, frame, y, height, colour);
    for (let i = firstAfter(track, view.from); i < track.starts.length && track.starts[i] < view.to; i++) {
      const kind = track.kinds[i];
      const from = frame.x(track.starts[i]);
      const to = frame.x(track.ends[i]);
      if (to - from < 1) {
        crowd.add(from, to, kind, state.critical && track.critical[i]);
        continue;
      }
      const half = track.halves[i];
      const [top, tall] = half ? [y + (half - 1) * (height / 2), height / 2] : [y, height];
      block(brush, from, to, top, tall, kind, track.microBatches[i] % 2, colour);
      if (state.critical && track.critical[i]) {
        brush.fillStyle = colour("critical");
        brush.fillRect(from, top, Math.max(1, to - from - 1), Math.min(4, tall / 4));
      }
      label(brush, track.labels[i], track.shortLabels[i], from, to, top + tall / 2 + 0.5, tall, kind, colour);
    }
    crowd.paint();
  }

  function block(brush, from, to, top, height, kind, odd, colour) {
    const width = Math.max(1, to - from - (to - from > 4 ? 1 : 0));
    brush.fillStyle = colour(`kind-${kind}`);
    brush.fillRect(from, top, width, height);
    if (odd) {
      brush.fillStyle = "rgb(255 255 255 / 28%)"; // neighbours stand apart
      brush.fillRect(from, top, width, height);
    }
    const foot = Kinds.FEET[kind];
    if (foot && height >= 12 && width >= 3) {
      brush.strokeStyle = kind === "U" ? "rgb(0 0 0 / 30%)" : "rgb(0 0 0 / 55%)";
      brush.lineWidth = 3;
      brush.setLineDash(foot);
      brush.beginPath();
      brush.moveTo(from, top + height - 1.5);
      brush.lineTo(from + width, top + height - 1.5);
      brush.stroke();
      brush.setLineDash([]);
    }
  }

  function label(brush, long, short, from, to, y, height, kind, colour) {
    if (height < 11 || to - from < 9) return;
    const left = Math.max(from, 0);
    const widthOf = (text) => text.length * 6.8 + 4;
    const text = [long, short, Kinds.LETTERS.includes(short[0]) ? short[0] : kind].find((t) => widthOf(t) <= to - left);
    if (!text) return;
    brush.fillStyle = colour(`on-${kind}`);
    brush.textAlign = "center";
    brush.fillText(text, (left + to) / 2, y);
  }

  /* Blocks too narrow to be seen, added up per pixel. */
  class Crowd {
    constructor(brush, frame, top, height, colour) {
      Object.assign(this, { brush, frame, top, height, colour });
      this.shares = new Map();
      this.critical = new Uint8Array(frame.columns + 2);
    }

    add(from, to, kind, critical) {
      const seconds = Math.max(to - from, 0.002);
      const column = Math.floor(from);
      const here = Math.min(to, column + 1) - from;
      this.put(column, kind, Math.min(seconds, here));
      if (seconds > here) this.put(column + 1, kind, seconds - here);
      if (critical && column >= this.frame.left) this.critical[column - this.frame.left] = 1;
    }

    put(column, kind, share) {
      if (!this.shares.has(kind)) this.shares.set(kind, new Float32Array(this.frame.columns + 2));
      const at = column - this.frame.left;
      if (at >= 0 && at < this.frame.columns) this.shares.get(kind)[at] += share;
    }

    paint() {
      const filled = new Float32Array(this.frame.columns + 2);
      for (const [kind, shares] of [...this.shares].sort()) {
        this.brush.fillStyle = this.colour(`kind-${kind}`);
        for (let at = 0; at < this.frame.columns; at++) {
          if (!shares[at]) continue;
          const tall = Math.min(1 - filled[at], shares[at]) * this.height;
          const bottom = this.top + this.height * (1 - filled[at]);
          this.brush.fillRect(this.frame.left + at, bottom - tall, 1, tall);
          filled[at] += shares[at];
        }
      }
      this.brush.fillStyle = this.colour("critical");
      this.critical.forEach((here, at) => here && this.brush.fillRect(this.frame.left + at, this.top, 1, 2));
    }
  }

  /* The steps of the critical path from rank to rank. */
  function paintChain(brush, frame, chart, colour) {
    brush.strokeStyle = colour("critical");
    brush.lineWidth = 2;
    brush.beginPath();
    for (const [from, to] of chart.hops) {
      const [x1, x2] = [frame.x(chart.endOf(from)), frame.x(chart.startOf(to))];
      if (x2 < frame.left || x1 > frame.left + frame.columns) continue;
      const [r1, r2] = [chart.rankOf(from), chart.rankOf(to)];
      const down = r2 > r1;
      brush.moveTo(x1 - 1, frame.y(r1) + (down ? frame.row - 1 : 1));
      brush.lineTo(x2 + 1, frame.y(r2) + (down ? 1 : frame.row - 1));
    }
    brush.stroke();
  }

  function paintEnd(brush, frame, chart, colour) {
    const x = Math.round(frame.x(chart.end)) + 0.5;
    brush.strokeStyle = colour("quiet");
    brush.lineWidth = 1;
    brush.setLineDash([3, 3]);
    brush.beginPath();
    brush.moveTo(x, 0);
    brush.lineTo(x, frame.bottom);
    brush.stroke();
    brush.setLineDash([]);
  }

  /* The span under the pointer or the keyboard, and an arrow from what it waited for. */
  function paintChosen(brush, frame, chart, at, colour) {
    const box = boxOf(frame, chart, at);
    brush.strokeStyle = colour("ink");
    brush.lineWidth = 2;
    brush.strokeRect(box.x, box.y, box.width, box.height);
    const before = chart.waitsOf(at);
    if (before < 0 || chart.rankOf(before) === chart.rankOf(at)) return;
    const from = boxOf(frame, chart, before);
    brush.setLineDash([4, 2]);
    brush.strokeRect(from.x, from.y, from.width, from.height);
    brush.setLineDash([]);
    arrow(brush, from.x + from.width, from.y + from.height / 2, box.x, box.y + box.height / 2, colour("ink"));
  }

  function boxOf(frame, chart, at) {
    const rank = chart.rankOf(at);
    const half = chart.halfOf(at);
    const height = frame.row - 2;
    const x = frame.x(chart.startOf(at));
    return {
      x,
      y: frame.y(rank) + 1 + (half === 2 ? height / 2 : 0),
      width: Math.max(2, frame.x(chart.endOf(at)) - x - 1),
      height: half ? height / 2 : height,
    };
  }

  function arrow(brush, x1, y1, x2, y2, ink) {
    const angle = Math.atan2(y2 - y1, x2 - x1);
    brush.beginPath();
    brush.moveTo(x1, y1);
    brush.lineTo(x2, y2);
    brush.stroke();
    brush.fillStyle = ink;
    brush.beginPath();
    brush.moveTo(x2, y2);
    for (const turn of [0.4, -0.4]) brush.lineTo(x2 - 9 * Math.cos(angle + turn), y2 - 9 * Math.sin(angle + turn));
    brush.fill();
  }

  function paintNames(brush, frame, chart, colour) {
    brush.fillStyle = colour("ink");
    brush.textAlign = "right";
    const every = Math.ceil(12 / frame.row);
    chart.tracks.forEach((track, rank) => {
      if (rank % every === 0) brush.fillText(track.name, frame.left - 8, frame.y(rank) + frame.row / 2 + 0.5);
    });
  }

  function paintAxis(brush, frame, colour) {
    const { from, to } = frame.view;
    const [sign, inSeconds] = Units.timeUnit(to);
    const y = frame.bottom + 1;
    brush.strokeStyle = brush.fillStyle = colour("quiet");
    brush.lineWidth = 1;
    brush.beginPath();
    brush.textAlign = "center";
    const ticks = Units.ticks(from / inSeconds, to / inSeconds, frame.columns / 90);
    const digits = ticks.length > 1 ? Math.max(0, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9)) : 0;
    for (const tick of ticks) {
      const x = Math.round(frame.x(tick * inSeconds)) + 0.5;
      brush.moveTo(x, y);
      brush.lineTo(x, y + 5);
      const text = tick.toFixed(Math.min(9, digits));
      if (x + text.length * 4 < frame.left + frame.columns + RIGHT) brush.fillText(text, x, y + 14);
    }
    brush.stroke();
    brush.textAlign = "right";
    brush.fillText(sign, frame.left - 8, y + 14);
  }

  return { Frame, heightOf, firstAfter, paint };
})();
