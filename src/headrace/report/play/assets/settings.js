"use strict";
/* What the reader has chosen: form ⇄ plain data ⇄ address. The form itself says what can be chosen and what is the
   start, so only what differs from the start stands in the address: `#schedule=zb-h1&ranks=6`. */

const Settings = (() => {
  const PAUSE = 250; // ms; browsers refuse an address that changes with every pixel of a slider

  const fields = (form) => [...form.elements].filter((field) => field.name);
  const start = (field) =>
    field.tagName === "SELECT"
      ? ([...field.options].find((option) => option.defaultSelected) ?? field.options[0]).value
      : field.defaultValue;

  /** Values by name; of sliders, numbers. */
  function read(form) {
    return Object.fromEntries(
      fields(form).map((field) => [field.name, field.type === "range" ? Number(field.value) : field.value]),
    );
  }

  /** Put values into the form and leave the rest alone. What is out of range is brought into it by the browser. */
  function write(form, values) {
    for (const field of fields(form)) {
      const value = values[field.name];
      if (value === undefined) continue;
      if (field.type === "range" && !(value.toString().trim() && Number.isFinite(Number(value)))) continue;
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) continue;
      field.value = value;
    }
  }

  function reset(form) {
    for (const field of fields(form)) field.value = start(field);
  }

  const inAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

  let later = 0;

  /** Soon, let the address say what the form says. */
  function remember(form) {
    clearTimeout(later);
    later = setTimeout(() => {
      const changed = fields(form).filter((field) => field.value !== start(field));
      const text = new URLSearchParams(changed.map((field) => [field.name, field.value])).toString();
      history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    }, PAUSE);
  }

  /** Let the form say what the address says. */
  function recall(form) {
    clearTimeout(later);
    write(form, inAddress());
  }

  return { read, write, reset, inAddress, recall, remember };
})();
