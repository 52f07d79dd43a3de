"use strict";
/* What the form looks like for what was chosen: numbers behind sliders, and only those controls that mean something. */

const Form = (() => {
  const form = document.getElementById("controls");
  const at = (id) => document.getElementById(id);

  const visible = (name, yes) => (form.querySelector(`.control[data-of="${name}"]`).hidden = !yes);

  /** Give the slider of the schedule's own number its name and range. `entry` is of the catalogue, or undefined. */
  function fit(entry) {
    if (!entry?.choice) return;
    const { label, values } = entry.choice;
    [at("choice").min, at("choice").max] = [values[0], values.at(-1)];
    form.querySelector("label[for=choice]").textContent = label;
  }

  /** What can be said before anything is simulated. */
  function label(chosen, entry) {
    for (const value of form.querySelectorAll(".value")) {
      const slider = at(value.dataset.of);
      value.textContent = `${Number(slider.value)}${value.dataset.unit && ` ${value.dataset.unit}`}`;
      slider.setAttribute("aria-valuetext", value.textContent);
    }
    for (const name of ["ranks", "micro_batches", "recompute"]) visible(name, entry);
    visible("choice", entry?.choice);
    visible("rows", !entry);
    for (const name of ["bandwidth", "link"]) visible(name, chosen.message > 0);
    visible("factor", chosen.heavy !== "own");
    visible("factors", chosen.heavy === "own");
    at("about").textContent = entry ? entry.description + (entry.needs && ` It needs: ${entry.needs}.`) : "";
  }

  /** What depends on the schedule that is shown. */
  function offer(schedule, entry) {
    const has = (kind) => schedule.rows.some((row) => row.some((action) => action.kind === kind));
    visible("pair", schedule.pairs.size > 0);
    visible("recompute_cost", has("R"));
    visible("stage_input", has("R"));
    visible("for_weight", has("W"));
    const each = schedule.lanes.flat().length / schedule.rows.length;
    if (entry && each > 1) at("about").textContent += ` ${each} stages on each rank.`;
  }

  return { form, fit, label, offer };
})();
