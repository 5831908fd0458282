// Shows the targets of the links and forms of the pages "browse" and "actions" in place, with the person's
// token, and asks for what a person wants done.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  if (!/\/(browse|actions)$/.test(location.pathname)) return;
  const PAGES = /^(entries|messages|topics|effects)([?]|$)/, LIMIT_MS = 30000;
  let token = sessionStorage.getItem("dledger-token") || "";
  const fresh = $("live").innerHTML;

  const say = (words) => {
    $("stale").hidden = !words;
    $("stale").textContent = words;
  };

  const show = async () => {
    const target = decodeURI(location.hash.slice(1));
    if (!PAGES.test(target)) {
      $("live").innerHTML = fresh;
      return;
    }
    const stop = new AbortController(), timer = setTimeout(() => stop.abort(), LIMIT_MS);
    try {
      const headers = { accept: "text/html" };
      if (token) headers.authorization = "Bearer " + token;
      const answer = await fetch(target, { headers, signal: stop.signal, cache: "no-store" });
      const text = await answer.text();
      $("ask").hidden = answer.status !== 401;
      if (answer.status === 401) return say("This administration shows this to holders of a token.");
      if (answer.status === 403) return say(JSON.parse(text).error);
      const page = new DOMParser().parseFromString(text, "text/html");
      const state = page.getElementById("state"), live = page.getElementById("live");
      if (!state || !live) throw new Error("this is no page of ours");
      $("state").className = state.className;
      $("state").textContent = state.textContent;
      $("live").replaceChildren(...live.childNodes);
      say("");
    } catch (error) {
      say("No answer. Is the server up?");
    } finally {
      clearTimeout(timer);
    }
  };

  // Done once: the button goes before the answer is there.
  const act = async (form) => {
    const target = form.getAttribute("action");
    form.remove();
    say("");
    try {
      const headers = token ? { authorization: "Bearer " + token } : {};
      const answer = await fetch(target, { method: "POST", headers, cache: "no-store" });
      const said = await answer.json();
      $("ask").hidden = answer.status !== 401;
      $("state").className = answer.ok ? "good" : "bad";
      $("state").textContent = answer.ok ? "Done: " + JSON.stringify(said) : "Not done: " + said.error;
    } catch (error) {
      say("No answer: it is not known whether it was done. See the dashboard.");
    }
  };

  const go = (target) => {
    if (decodeURI(location.hash.slice(1)) === target) show();
    else location.hash = encodeURI(target);
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("#live a[href]");
    if (!link || !PAGES.test(link.getAttribute("href"))) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
  document.addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.target === $("ask")) {
      token = $("token").value.trim();
      sessionStorage.setItem("dledger-token", token);
      $("token").value = "";
      show();
      return;
    }
    if (event.target.method === "post") {
      act(event.target);
      return;
    }
    const words = [...new FormData(event.target)].filter(([, value]) => value.trim());
    go(event.target.getAttribute("action") + "?" + new URLSearchParams(words));
  });
  window.addEventListener("hashchange", show);
  if (location.hash) show();
})();
