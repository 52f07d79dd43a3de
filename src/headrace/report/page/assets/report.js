"use strict";
/* The report: every component draws in the section of its name. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = (name) => document.getElementById(name);
  Gantt.draw(place("timeline"), data.timeline);
  Breakdown.draw(place("breakdown"), data.breakdown);
  Memory.draw(place("memory"), data.memory);
  Curve.draw(place("loss"), data.loss);
})();
