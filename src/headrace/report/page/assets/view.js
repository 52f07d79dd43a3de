"use strict";
/* The part of the step that charts show, shared by all that have one time axis.

       0 ─────────[from ━━━━━━━━━━ to]───────── end                                                                   */
class View {
  constructor() {
    this.end = 1;
    this.from = 0;
    this.to = 1;
    this.watchers = [];
  }

  /* `watcher` is called after every change. */
  watch(watcher) {
    this.watchers.push(watcher);
  }

  get whole() {
    return this.from <= 0 && this.to >= this.end;
  }

  /* Another step: what showed all goes on showing all, what was zoomed stays where it was as far as it can. */
  setEnd(end) {
    const all = this.whole;
    this.end = end > 0 ? end : 1;
    this.show(all ? 0 : this.from, all ? this.end : this.to);
  }

  show(from, to) {
    const length = Math.min(this.end, Math.max(to - from, this.end * 1e-7));
    this.from = Math.min(Math.max(0, from), this.end - length);
    this.to = this.from + length;
    this.watchers.forEach((watcher) => watcher());
  }

  showAll() {
    this.show(0, this.end);
  }

  /* `factor` below 1 zooms in; the moment `at` stays where it is on the screen. */
  zoom(at, factor) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(seconds) {
    this.show(this.from + seconds, this.to + seconds);
  }

  /* Moves as little as is needed for a span to be seen. */
  reveal(start, end) {
    const length = this.to - this.from;
    if (start < this.from || end - start > length) this.show(start - 0.1 * length, start + 0.9 * length);
    else if (end > this.to) this.show(end - 0.9 * length, end + 0.1 * length);
  }
}
