"use strict";
(() => {
  // A click on a link highlights its target, and the columns of its microbatch.
  const put_out = () => {
    for (const lit of document.querySelectorAll(".lit, .lit-column")) {
      lit.classList.remove("lit", "lit-column");
    }
  };
  const light = (id, microbatch) => {
    const place = id && document.getElementById(id);
    put_out();
    if (!place) return;
    for (let box = place; box; box = box.parentElement) {
      if (box.tagName === "DETAILS") box.open = true;
    }
    if (place.tagName !== "SECTION") place.classList.add("lit");
    if (microbatch !== undefined) {
      const heads = [...place.querySelectorAll("thead th")];
      heads.forEach((head, column) => {
        const { from, to } = head.dataset;
        if (from === undefined || microbatch < Number(from) || microbatch > Number(to)) return;
        for (const row of place.querySelectorAll("tr")) row.cells[column].classList.add("lit-column");
      });
    }
    place.scrollIntoView({ block: place.tagName === "SECTION" ? "start" : "center" });
    place.focus({ preventScroll: true });
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { microbatch } = link.dataset;
    history.pushState(null, "", link.getAttribute("href"));
    light(link.hash.slice(1), microbatch === undefined ? undefined : Number(microbatch));
  });
  const follow = () => light(location.hash.slice(1));
  addEventListener("popstate", follow);
  addEventListener("hashchange", follow);
  if (location.hash) follow();

  // On paper nothing can be opened, so all details are open while the page is printed.
  const opened = [];
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("details:not([open])")) {
      box.open = true;
      opened.push(box);
    }
  });
  addEventListener("afterprint", () => {
    for (const box of opened.splice(0)) box.open = false;
  });

  // The timeline: zooms, and shows the span under the pointer.
  const lanes = document.querySelector(".lanes");
  if (!lanes) return;
  const spans = lanes.querySelector(".spans");
  const axis = lanes.querySelector(".axis");
  const readout = lanes.querySelector(".readout");
  const width = Number(lanes.dataset.width);
  const height = spans.viewBox.baseVal.height;
  const ranks = lanes.dataset.ranks.split(" ");
  const numbers = lanes.dataset.knots.split(" ").map(Number);
  const knots = [];
  for (let i = 0; i < numbers.length; i += 2) knots.push({ t: numbers[i], x: numbers[i + 1] });
  const lane = height / ranks.length;
  const narrowest = width / 5000;
  let left = 0;
  let wide = width;

  const time = (x) => {
    const after = knots.findIndex((knot) => knot.x > x);
    if (after <= 0) return after === 0 ? 0 : knots[knots.length - 1].t;
    const [a, b] = [knots[after - 1], knots[after]];
    return a.t + ((x - a.x) / (b.x - a.x)) * (b.t - a.t);
  };
  const duration = (ns) => {
    if (ns >= 1e9) return `${(ns / 1e9).toFixed(2)} s`;
    if (ns >= 1e8) return `${(ns / 1e6).toFixed(0)} ms`;
    if (ns >= 1e6) return `${(ns / 1e6).toFixed(wide < width / 20 ? 3 : 1)} ms`;
    if (ns >= 1e3) return `${(ns / 1e3).toFixed(0)} µs`;
    return `${ns.toFixed(0)} ns`;
  };
  const show = (from, size) => {
    wide = Math.min(width, Math.max(narrowest, size));
    left = Math.min(width - wide, Math.max(0, from));
    spans.setAttribute("viewBox", `${left} 0 ${wide} ${height}`);
    [...axis.querySelectorAll("text")].forEach((text, i, all) => {
      text.textContent = duration(time(left + (i / all.length) * wide));
    });
  };
  const zoom = (factor, at = 0.5) => {
    const middle = left + at * wide;
    const size = Math.min(width, Math.max(narrowest, wide * factor));
    show(middle - at * size, size);
  };
  const deeds = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => show(left - wide / 4, wide),
    right: () => show(left + wide / 4, wide),
    all: () => show(0, width),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
  lanes.querySelector(".tools").hidden = false;
  lanes.addEventListener("click", (event) => {
    const deed = event.target.closest("button")?.dataset.do;
    if (deed) deeds[deed]();
  });
  lanes.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    deeds[keys[event.key]]();
  });
  spans.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / spans.clientWidth);
  }, { passive: false });

  // A path holds the spans of one kind on all ranks, each as `M<from> <y>h<length>`.
  const found = new WeakMap();
  const pieces = (path) => {
    if (!found.has(path)) {
      const all = [...path.getAttribute("d").matchAll(/M(\d+) (\d+)h(\d+)/g)];
      found.set(path, all.map(([, from, y, length]) => [Number(from), Number(y), Number(length)]));
    }
    return found.get(path);
  };
  spans.addEventListener("pointermove", (event) => {
    const box = spans.getBoundingClientRect();
    const x = left + ((event.clientX - box.left) / box.width) * wide;
    const y = ((event.clientY - box.top) / box.height) * height;
    const row = Math.min(ranks.length - 1, Math.max(0, Math.floor(y / lane)));
    const title = event.target.querySelector?.("title")?.textContent;
    const place = `rank ${ranks[row]}, ${duration(time(x))}`;
    const is_here = ([from, at, length]) => Math.floor(at / lane) === row && x >= from && x <= from + length;
    const span = event.target.matches?.(".phase, .collective") && pieces(event.target).find(is_here);
    if (span) {
      const length = duration(time(span[0] + span[2]) - time(span[0]));
      readout.textContent = `rank ${ranks[row]}: ${title}, from ${duration(time(span[0]))}, ${length} long`;
    } else {
      readout.textContent = title && event.target !== spans ? `${place}: ${title}` : place;
    }
  });
})();
