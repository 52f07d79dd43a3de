"use strict";
/* What wheel, pointers, fingers and keys do to a Gantt chart.

   A wheel that was already scrolling the page goes on scrolling it when the chart comes under it: nobody is trapped.  */
const GanttInput = (() => {
  const STILL_SCROLLING = 300; // ms
  let scrolledAt = -Infinity;
  addEventListener("scroll", () => (scrolledAt = performance.now()), { passive: true, capture: true });

  const CONTROL = {
    "+": (view) => view.zoom((view.from + view.to) / 2, 0.5),
    "=": (view) => view.zoom((view.from + view.to) / 2, 0.5),
    "-": (view) => view.zoom((view.from + view.to) / 2, 2),
    "−": (view) => view.zoom((view.from + view.to) / 2, 2),
    0: (view) => view.showAll(),
  };

  function listen(pane) {
    const { canvas } = pane;
    canvas.addEventListener("wheel", (event) => onWheel(pane, event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => onDown(pane, event));
    canvas.addEventListener("pointermove", (event) => onMove(pane, event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => onUp(pane, event));
    canvas.addEventListener("pointerleave", () => pane.pointers.size || pane.choose(null));
    canvas.addEventListener("keydown", (event) => onKey(pane, event));
    canvas.addEventListener("dblclick", () => pane.charts.view.showAll());
    canvas.addEventListener("blur", () => pane.choose(null));
  }

  const inCanvas = (pane, event) => {
    const box = pane.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  function onWheel(pane, event) {
    const { view } = pane.charts;
    const zooms = event.ctrlKey || Math.abs(event.deltaY) > Math.abs(event.deltaX);
    const out = event.deltaY > 0;
    const scrolls = !event.ctrlKey && performance.now() - scrolledAt < STILL_SCROLLING;
    if (scrolls || (zooms && out && view.whole && !event.ctrlKey)) return;
    if (!zooms && view.whole) return;
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? 16 : 1; // some browsers count in lines
    if (zooms) {
      const strength = event.ctrlKey ? 0.01 : 0.002;
      view.zoom(pane.frame.moment(inCanvas(pane, event).x), Math.exp(event.deltaY * pixels * strength));
    } else {
      view.pan((event.deltaX * pixels) / pane.frame.scale);
    }
  }

  function onDown(pane, event) {
    if (event.button) return;
    pane.pointers.set(event.pointerId, inCanvas(pane, event));
    pane.dragged = 0;
    pane.canvas.setPointerCapture(event.pointerId);
  }

  function onMove(pane, event) {
    const { view } = pane.charts;
    const now = inCanvas(pane, event);
    const before = pane.pointers.get(event.pointerId);
    if (!before) {
      point(pane, now, event);
      return;
    }
    pane.dragged += Math.abs(now.x - before.x);
    const other = [...pane.pointers].find(([id]) => id !== event.pointerId);
    if (other) {
      const [, there] = other;
      const factor = Math.max(12, Math.abs(before.x - there.x)) / Math.max(12, Math.abs(now.x - there.x));
      view.zoom(pane.frame.moment(there.x), factor);
    } else if (pane.dragged > Gantt.LEAST_DRAG) {
      pane.choose(null);
      view.pan((before.x - now.x) / pane.frame.scale);
    }
    pane.pointers.set(event.pointerId, now);
  }

  function onUp(pane, event) {
    pane.pointers.delete(event.pointerId);
    if (event.type === "pointerup" && pane.dragged <= Gantt.LEAST_DRAG) point(pane, inCanvas(pane, event), event);
  }

  function point(pane, { x, y }, event) {
    const { frame, chart } = pane;
    if (!frame || x < frame.left || y > frame.bottom) {
      pane.choose(null);
      return;
    }
    const rank = frame.rank(y);
    const lower = y - frame.y(rank) > frame.row / 2;
    pane.choose(chart.find(rank, frame.moment(x), 2 / frame.scale, lower), { x: event.clientX, y: event.clientY });
  }

  function onKey(pane, event) {
    const { view } = pane.charts;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const control = CONTROL[event.key];
    if (control) {
      control(view);
    } else if (event.key === "Escape") {
      pane.choose(null);
    } else if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      view.pan(((event.key === "ArrowLeft" ? -1 : 1) * (view.to - view.from)) / 4);
    } else {
      const to = destination(pane, event.key);
      if (to === undefined) return;
      if (to !== null) goTo(pane, to);
    }
    event.preventDefault();
  }

  /* The span that a key leads to; null for no other, undefined if the key means nothing here. */
  function destination({ chart, at, charts }, key) {
    const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Enter"];
    if (!keys.includes(key)) return undefined;
    if (at === null) return chart.find(0, charts.view.from, Infinity);
    const rank = chart.rankOf(at);
    const [first, last] = [chart.offsets[rank], chart.offsets[rank] + chart.tracks[rank].starts.length - 1];
    const middle = (chart.startOf(at) + chart.endOf(at)) / 2;
    switch (key) {
      case "ArrowLeft":
        return Math.max(first, at - 1);
      case "ArrowRight":
        return Math.min(last, at + 1);
      case "ArrowUp":
        return chart.find(rank - 1, middle, Infinity);
      case "ArrowDown":
        return chart.find(rank + 1, middle, Infinity);
      case "Home":
        return first;
      case "End":
        return last;
      default:
        return chart.waitsOf(at) < 0 ? null : chart.waitsOf(at);
    }
  }

  function goTo(pane, at) {
    const { chart, charts, canvas } = pane;
    charts.view.reveal(chart.startOf(at), chart.endOf(at));
    pane.picture.now();
    const box = canvas.getBoundingClientRect();
    const { frame } = pane;
    const x = Math.max(frame.left, frame.x(chart.startOf(at)));
    pane.choose(at, { x: box.left + x, y: box.top + frame.y(chart.rankOf(at)) + frame.row - 10 }, true);
  }

  return { listen };
})();
