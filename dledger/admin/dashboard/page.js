// Asks for this page again and again, puts its new tables in place, and draws curves of its numbers.
"use strict";
(() => {
  const EVERY_MS = 2000, STALE_MS = 6000, KEPT = 150;
  const $ = (id) => document.getElementById(id);
  let token = sessionStorage.getItem("dledger-token") || "";
  let last = null, heard = Date.now(), looks = [];
  const SVG = "http://www.w3.org/2000/svg", figures = new Map();

  const deltas = (now, then) => now.counts.map((count, at) => count - then.counts[at]);
  // The upper bound of the bucket with this share of the observations; NaN without any.
  const quantile = (now, then, share) => {
    const counts = deltas(now, then), all = counts.reduce((a, b) => a + b, 0);
    if (all <= 0) return NaN;
    let seen = 0;
    for (let at = 0; at < counts.length; at++) {
      seen += counts[at];
      if (seen >= share * all) return now.bounds[Math.min(at, now.bounds.length - 1)];
    }
    return NaN;
  };
  const short = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const ms = (value) => short(value * 1000) + " ms";

  // By the title of each curve: how to say a value, and the new values between two looks.
  const values = (now) => {
    const found = new Map(), seconds = now.at_s - last.at_s;
    for (const [title, value] of Object.entries(now.gauges)) found.set(title, [short, [value]]);
    for (const [title, value] of Object.entries(now.counters)) {
      if (title in last.counters) found.set(title, [short, [Math.max(0, value - last.counters[title]) / seconds]]);
    }
    for (const [title, value] of Object.entries(now.times)) {
      const then = last.times[title];
      if (then && value.bounds.length) found.set(title, [ms, [0.5, 0.99].map((one) => quantile(value, then, one))]);
    }
    return found;
  };

  const line = (drawn, number, top) => {
    const first = looks[0].at, span = Math.max(looks[looks.length - 1].at - first, 1);
    const points = drawn.filter((one) => Number.isFinite(one.values[number]))
      .map((one) => ((one.at - first) / span * 100).toFixed(1) + "," + (38 - one.values[number] / top * 36).toFixed(1));
    const made = document.createElementNS(SVG, "polyline");
    made.setAttribute("points", points.join(" "));
    if (number) made.setAttribute("class", "second");
    return made;
  };

  const figureOf = (title) => {
    if (figures.has(title)) return figures.get(title);
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 100 40");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    caption.append(title, document.createElement("b"));
    figure.append(caption, svg);
    $("plots").append(figure);
    figures.set(title, figure);
    return figure;
  };

  const draw = () => {
    const newest = looks[looks.length - 1];
    for (const [title, [said, now]] of newest.found) {
      const drawn = looks.filter((one) => one.found.has(title))
        .map((one) => ({ at: one.at, values: one.found.get(title)[1] }));
      const all = drawn.flatMap((one) => one.values).filter(Number.isFinite);
      if (!all.length) continue;
      const figure = figureOf(title), svg = figure.querySelector("svg"), top = Math.max(...all, 1e-9);
      const words = now.map((value) => Number.isFinite(value) ? said(value) : "none").join(", ");
      figure.querySelector("b").textContent = words;
      svg.setAttribute("aria-label", title + ": now " + words + ", at most " + said(Math.max(...all)));
      svg.replaceChildren(...now.map((_, number) => line(drawn, number, top)));
    }
    $("curves").hidden = !figures.size;
  };

  const take = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const numbers = page.getElementById("numbers"), live = page.getElementById("live");
    if (!numbers || !live) throw new Error("this is no page of ours");
    const now = JSON.parse(numbers.textContent);
    const isLater = last && now.at_s > last.at_s && now.uptime_s >= last.uptime_s;
    if (isLater) looks = [...looks, { at: now.at_s, found: values(now) }].slice(-KEPT);
    last = now;
    const state = page.getElementById("state");
    if (state.outerHTML !== $("state").outerHTML) {
      $("state").className = state.className;
      $("state").textContent = state.textContent;
    }
    if (live.innerHTML !== $("live").innerHTML) $("live").replaceChildren(...live.childNodes);
    document.title = page.title;
    if (isLater) draw();
  };

  const stale = (why) => {
    const seconds = Math.round((Date.now() - heard) / 1000);
    const isOld = seconds * 1000 >= STALE_MS;
    $("stale").hidden = !why && !isOld;
    $("stale").textContent = why || (isOld ? "No answer for " + seconds + " s: what follows is old." : "");
  };

  const look = async () => {
    const stop = new AbortController(), timer = setTimeout(() => stop.abort(), STALE_MS);
    try {
      const headers = { accept: "text/html" };
      if (token) headers.authorization = "Bearer " + token;
      const answer = await fetch("live", { headers, signal: stop.signal, cache: "no-store" });
      $("ask").hidden = answer.status !== 401;
      if (answer.status === 401) {
        stale("This administration shows its numbers to holders of a token.");
      } else if (answer.ok) {
        take(await answer.text());
        heard = Date.now();
        stale("");
      } else {
        stale("");
      }
    } catch (error) {
      stale("");
    } finally {
      clearTimeout(timer);
      setTimeout(look, document.hidden ? 5 * EVERY_MS : EVERY_MS);
    }
  };

  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    token = $("token").value.trim();
    sessionStorage.setItem("dledger-token", token);
    $("token").value = "";
  });
  const first = $("numbers");
  if (first) last = JSON.parse(first.textContent);
  setTimeout(look, first ? EVERY_MS : 0);
})();
