// Asks for this page again and again, puts its new tables in place, and draws curves of its numbers.
"use strict";
(() => {
  const EVERY_MS = 2000, STALE_MS = 6000, KEPT = 200, SHOWN_S = 300;
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
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
  // The unit in which a value is said, and its size in the unit of the numbers.
  const scaled = (value, unit) => {
    if (unit === "s" && value > 0 && value < 1) return ["ms", 0.001];
    if (unit !== "B") return [unit, 1];
    const at = Math.min(Math.max(Math.floor(Math.log2(Math.max(value, 1)) / 10), 0), BYTES.length - 1);
    return [BYTES[at], 1024 ** at];
  };
  const said = (value, unit) => {
    const [name, size] = scaled(value, unit);
    return short(value / size) + " " + name;
  };
  // The least of 1, 2, 5, 10, 20 ... of its unit that is not less.
  const roundTop = (value, unit) => {
    const size = scaled(value, unit)[1], count = value / size;
    if (count <= 1 && !(unit === "s" && count > 0)) return size;
    const power = 10 ** Math.floor(Math.log10(count));
    return size * power * [1, 2, 5, 10].find((one) => one * power >= count * (1 - 1e-9));
  };

  // By the title of each curve: its unit, and the new values between two looks.
  const values = (now) => {
    const found = new Map(), seconds = now.at_s - last.at_s;
    for (const [title, [value, unit]] of Object.entries(now.gauges)) found.set(title, [unit, [value]]);
    for (const [title, [value, unit]] of Object.entries(now.counters)) {
      const then = last.counters[title];
      if (then) found.set(title, [unit, [Math.max(0, value - then[0]) / seconds]]);
    }
    for (const [title, value] of Object.entries(now.times)) {
      const then = last.times[title];
      if (then && value.bounds.length) found.set(title, ["s", [0.5, 0.99].map((one) => quantile(value, then, one))]);
    }
    return found;
  };

  const shape = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const LOW = 39, HIGH = 1;
  const line = (drawn, number, top) => {
    const first = looks[0].at, points = drawn.filter((one) => Number.isFinite(one.values[number]))
      .map((one) => ((one.at - first) / span() * 100).toFixed(1) + ","
        + (LOW - one.values[number] / top * (LOW - HIGH)).toFixed(1));
    return shape("polyline", { points: points.join(" "), ...(number ? { class: "second" } : {}) });
  };
  const span = () => Math.max(looks[looks.length - 1].at - looks[0].at, 1);
  const spanWords = () => span() < 90 ? Math.round(span()) + " s" : Math.round(span() / 60) + " min";

  const figureOf = (title) => {
    if (figures.has(title)) return figures.get(title);
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const part = (name) => {
      const made = document.createElement("div");
      made.className = name;
      made.setAttribute("aria-hidden", "true");
      made.append(document.createElement("span"), document.createElement("span"));
      return made;
    };
    caption.append(title, document.createElement("b"));
    const svg = shape("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
    figure.append(caption, part("height"), svg, part("width"));
    $("plots").append(figure);
    figures.set(title, figure);
    return figure;
  };

  const draw = () => {
    const gone = new Set(figures.keys());
    for (const [title, [unit, now]] of looks[looks.length - 1].found) {
      const drawn = looks.filter((one) => one.found.has(title))
        .map((one) => ({ at: one.at, values: one.found.get(title)[1] }));
      const all = drawn.flatMap((one) => one.values).filter(Number.isFinite);
      if (!all.length) continue;
      gone.delete(title);
      const figure = figureOf(title), svg = figure.querySelector("svg");
      const most = Math.max(...all), top = roundTop(most, unit);
      const each = now.map((value) => Number.isFinite(value) ? said(value, unit) : "none");
      const words = each.length > 1 ? `p50 ${each[0]}, p99 (dashed) ${each[1]}` : each[0];
      const put = (name, texts) => figure.querySelectorAll(`.${name} span`)
        .forEach((one, at) => { one.textContent = texts[at]; });
      figure.querySelector("b").textContent = words;
      put("height", [said(top, unit), "0"]);
      put("width", [spanWords() + " ago", "now"]);
      svg.setAttribute("aria-label", `${title}: now ${words}; at most ${said(most, unit)} in the last `
        + `${spanWords()}. The scale is from 0 to ${said(top, unit)}.`);
      svg.replaceChildren(
        ...[HIGH, (HIGH + LOW) / 2, LOW].map((y) => shape("line", { x1: 0, x2: 100, y1: y, y2: y })),
        ...now.map((_, number) => line(drawn, number, top)),
      );
    }
    for (const title of gone) {
      figures.get(title).remove();
      figures.delete(title);
    }
    $("curves").hidden = !figures.size;
  };

  const take = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const numbers = page.getElementById("numbers");
    if (!numbers || !page.getElementById("findings") || !page.getElementById("live")) {
      throw new Error("this is no page of ours");
    }
    const now = JSON.parse(numbers.textContent);
    const isLater = last && now.at_s > last.at_s && now.uptime_s >= last.uptime_s;
    if (isLater) {
      looks = [...looks, { at: now.at_s, found: values(now) }].slice(-KEPT)
        .filter((one) => now.at_s - one.at <= SHOWN_S);
    }
    last = now;
    const state = page.getElementById("state");
    if (state.outerHTML !== $("state").outerHTML) {
      $("state").className = state.className;
      $("state").textContent = state.textContent;
    }
    for (const name of ["findings", "live"]) {
      const part = page.getElementById(name);
      if (part.innerHTML !== $(name).innerHTML) $(name).replaceChildren(...part.childNodes);
    }
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
