"use strict";
/* Where each rank's time went: a stacked bar per rank, and the numbers in a table.

   Breakdown.draw(element, {
     groups: [{title: "measured", ranks: [{name: "rank 0", parts: {forward: seconds, …}}]}],
   });

   Parts are drawn in the order of PARTS; a group's bars are as long as its longest rank's sum beside the longest of all
   groups, so that predicted and measured can be compared by eye. Each part has a hatching of its own (style.css) and,
   where it is wide enough, its share in figures.                                                                      */
const Breakdown = (() => {
  const PARTS = ["forward", "backward", "weight", "recompute", "waiting", "idle", "optimizer"];
  const WORDS = {
    forward: "forward",
    backward: "backward",
    weight: "weight gradient",
    recompute: "recompute",
    optimizer: "optimizer",
    waiting: "waiting for a message",
    idle: "idle",
  };
  const WIDE_ENOUGH = 0.1;

  const sum = (parts) => PARTS.reduce((all, part) => all + (parts[part] || 0), 0);

  function draw(element, { groups }) {
    const longest = Math.max(...groups.flatMap(({ ranks }) => ranks.map(({ parts }) => sum(parts))), 1e-12);
    const used = PARTS.filter((part) => groups.some(({ ranks }) => ranks.some(({ parts }) => parts[part] > 0)));
    element.classList.add("breakdown");
    element.replaceChildren(legend(used), ...groups.map((group) => section(group, used, longest)));
  }

  function section({ title, ranks }, used, longest) {
    const box = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    const bars = document.createElement("div");
    bars.className = "bars";
    bars.setAttribute("aria-hidden", "true"); // the table says the same
    for (const { name, parts } of ranks) bars.append(...bar(name, parts, used, longest));
    box.append(caption, bars, numbers(title, ranks, used));
    return box;
  }

  function bar(name, parts, used, longest) {
    const label = document.createElement("span");
    label.textContent = name;
    const whole = document.createElement("div");
    whole.className = "bar";
    const all = sum(parts);
    for (const part of used.filter((each) => parts[each] > 0)) {
      const piece = document.createElement("span");
      piece.className = `swatch-${part}`;
      piece.style.width = `${(100 * parts[part]) / longest}%`;
      piece.title = `${WORDS[part]}: ${Units.seconds(parts[part])}, ${Units.percent(parts[part] / all)}`;
      if (parts[part] > WIDE_ENOUGH * longest) {
        const share = document.createElement("b");
        share.textContent = `${Math.round((100 * parts[part]) / all)} %`;
        piece.append(share);
      }
      whole.append(piece);
    }
    return [label, whole];
  }

  function numbers(title, ranks, used) {
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    const rows = ranks.map(({ name, parts }) => [
      name,
      ...used.map((part) => (parts[part] ? Units.seconds(parts[part]) : "–")),
      Units.seconds(sum(parts)),
    ]);
    scroll.append(Tables.of(["rank", ...used.map((part) => WORDS[part]), "step"], rows, `Seconds per rank, ${title}`));
    return scroll;
  }

  function legend(used) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const part of used) {
      const item = document.createElement("li");
      const swatch = document.createElement("span");
      swatch.className = `swatch swatch-${part}`;
      swatch.setAttribute("aria-hidden", "true");
      item.append(swatch, WORDS[part]);
      list.append(item);
    }
    return list;
  }

  return { draw, PARTS };
})();
