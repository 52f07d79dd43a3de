"use strict";
/* What the letters of actions mean, and how each kind looks.

   A kind is told by its letter and by the foot of its block as well as by its colour (Okabe and Ito's palette, which
   colour-blind people can tell apart; see --kind-… in style.css). Feet, from left to right along the bottom edge:

       F none    B ▬▬▬▬    I ▬ ▬ ▬    W ▪▪▪▪    R ▬ ▪ ▬    U ▬▬▬▬ (light)                                              */
const Kinds = (() => {
  const NAMES = {
    F: "forward",
    B: "backward",
    I: "backward (input gradient)",
    W: "backward (weight gradient)",
    R: "recompute",
    U: "update",
  };
  /* Lengths in px of foot and gap, in turn, as for setLineDash; null for no foot. */
  const FEET = { F: null, B: [], I: [6, 4], W: [2, 2], R: [8, 3, 2, 3], U: [] };
  const LETTERS = Object.keys(NAMES);

  /* "2F10" → {stage: 2, kind: "F", microBatch: 10} */
  function parse(action) {
    const at = action.search(/[A-Z]/);
    return { stage: Number(action.slice(0, at)), kind: action[at], microBatch: Number(action.slice(at + 1)) };
  }

  /* "forward of micro-batch 10 on stage 2"; `segments`: in how many pieces sequences are cut. */
  function inWords(action, segments = 1) {
    const { stage, kind, microBatch } = parse(action);
    if (kind === "U") return `update of stage ${stage}`;
    const whole = Math.floor(microBatch / segments);
    const piece = segments > 1 ? `, segment ${microBatch % segments}` : "";
    return `${NAMES[kind]} of micro-batch ${whole}${piece} on stage ${stage}`;
  }

  /* <ul class="legend"> of those kinds that occur. */
  function legend(kinds, more = []) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const kind of LETTERS.filter((letter) => kinds.has(letter))) list.append(entry(kind, kind, NAMES[kind]));
    for (const [name, words] of more) list.append(entry(name, "", words));
    return list;
  }

  function entry(name, letter, words) {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = `swatch swatch-${name}`;
    swatch.textContent = letter;
    swatch.setAttribute("aria-hidden", "true");
    item.append(swatch, words);
    return item;
  }

  return { NAMES, FEET, LETTERS, parse, inWords, legend };
})();
