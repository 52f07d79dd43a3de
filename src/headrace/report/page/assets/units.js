"use strict";
/* Numbers for people, written as headrace/units.py writes them, so that page and terminal read alike. */
const Units = (() => {
  const TIMES = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];

  function timeUnit(value) {
    const size = Math.abs(value);
    return (size && TIMES.find(([, inSeconds]) => size >= inSeconds)) || TIMES[size ? 3 : 0];
  }

  function number(value) {
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
    return String(Number(value.toPrecision(4)));
  }

  function seconds(value) {
    const [sign, inSeconds] = timeUnit(value);
    return `${number(value / inSeconds)} ${sign}`;
  }

  function bytes(value) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(value) < 1024) return `${number(value)} ${unit}`;
      value /= 1024;
    }
    return `${number(value)} TiB`;
  }

  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  /* Round numbers between `from` and `to`, about `count` of them: 0, 20, 40, … */
  function ticks(from, to, count) {
    if (!(to > from)) return [from];
    const rough = (to - from) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const found = [];
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9 * step; i++) found.push(i * step);
    return found;
  }

  return { timeUnit, number, seconds, bytes, percent, ticks };
})();
