"use strict";
/* An HTML table of texts: the first column names the row, numbers stand right. */
const Tables = (() => {
  function of(head, rows, caption = "") {
    const table = document.createElement("table");
    if (caption) table.createCaption().textContent = caption;
    const top = table.createTHead().insertRow();
    for (const name of head) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      top.append(cell);
    }
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (!i) cell.scope = "row";
        cell.textContent = text;
        line.append(cell);
      });
    }
    return table;
  }

  return { of };
})();
