// Light and dark, keys, live progress. Every page works without this file.
"use strict";

(() => {
  const root = document.documentElement;
  const saved = (() => {
    try { return localStorage.getItem("tokenmill-theme"); } catch { return null; }
  })();
  if (saved === "light" || saved === "dark") root.dataset.theme = saved;

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  function toggleTheme() {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("tokenmill-theme", root.dataset.theme); } catch { /* private window */ }
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  const isTyping = (target) => target instanceof Element && target.closest("input, select, textarea, [contenteditable]");

  function go(selector) {
    const found = document.querySelector(selector);
    if (found) found.click();
    return Boolean(found);
  }

  let isGoing = false;
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && isTyping(event.target)) { event.target.blur(); return; }
    if (isTyping(event.target)) return;
    const key = event.key.toLowerCase();
    if (isGoing) {
      isGoing = false;
      if (/^[a-z]$/.test(key) && go(`[data-go="${key}"]`)) event.preventDefault();
      return;
    }
    if (key === "g") { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); return; }
    if (key === "t") toggleTheme();
    else if (key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { field.focus(); field.select(); event.preventDefault(); }
      else if (go('[data-go="s"]')) event.preventDefault();
    } else if (key === "n" || key === "p") {
      if (go(`[data-key="${key}"]`)) event.preventDefault();
    }
  }

  // The arrow keys move between tokens; only one token is in the order of the tab key.
  function setUpTokens(text) {
    const tokens = [...text.querySelectorAll(".t")];
    const panel = document.querySelector("[data-inspector]");
    if (!tokens.length || !panel) return;
    panel.hidden = false;
    const isRightToLeft = () => getComputedStyle(text).direction === "rtl";
    let current = text.querySelector(".t.marked") || tokens[0];
    current.tabIndex = 0;
    if (current !== tokens[0]) current.scrollIntoView({ block: "center" });
    const show = (token) => {
      panel.replaceChildren();
      for (const [name, value] of token.dataset.about.split("\n").map((line) => line.split("\t"))) {
        const strong = document.createElement("b");
        strong.textContent = value;
        panel.append(`${name} `, strong, "   ");
      }
    };
    for (const token of tokens) { token.dataset.about = token.title.replaceAll(": ", "\t"); token.removeAttribute("title"); }
    text.addEventListener("pointerover", (event) => {
      const token = event.target.closest(".t");
      if (token) show(token);
    });
    text.addEventListener("focusin", (event) => {
      const token = event.target.closest(".t");
      if (!token) return;
      current.tabIndex = -1;
      current = token;
      current.tabIndex = 0;
      show(token);
    });
    text.addEventListener("click", (event) => {
      const token = event.target.closest(".t");
      if (token) { token.tabIndex = 0; token.focus(); }
    });
    text.addEventListener("keydown", (event) => {
      const at = tokens.indexOf(current);
      const forward = isRightToLeft() ? "ArrowLeft" : "ArrowRight";
      const backward = isRightToLeft() ? "ArrowRight" : "ArrowLeft";
      const next = { [forward]: at + 1, [backward]: at - 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const token = tokens[Math.max(0, Math.min(tokens.length - 1, next))];
      token.tabIndex = 0;
      token.focus();
    });
  }

  // Shows the progress of work in the background, and reloads the page when it has ended.
  function watch(element) {
    const bar = element.querySelector("progress");
    const words = element.querySelector("[data-words]");
    const ask = async () => {
      try {
        const answer = await fetch(element.dataset.watch, { headers: { accept: "application/json" } });
        if (!answer.ok) return;
        const state = await answer.json();
        if (state.state !== "working") { location.reload(); return; }
        if (bar && state.share !== null) bar.value = state.share;
        if (words) words.textContent = state.words;
      } catch { return; }
      setTimeout(ask, 700);
    };
    setTimeout(ask, 300);
  }

  // A search that has found nothing yet continues by itself, until Escape.
  function continueSearch(link) {
    const timer = setTimeout(() => location.replace(link.href), 50);
    const stop = document.createElement("button");
    stop.type = "button";
    stop.className = "button quiet";
    stop.textContent = "Stop";
    const end = () => { clearTimeout(timer); window.stop(); stop.remove(); };
    stop.addEventListener("click", end);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") end(); });
    link.before(stop);
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.hidden = false;
      button.addEventListener("click", toggleTheme);
    }
    for (const keys of document.querySelectorAll("[data-keys]")) keys.hidden = false;
    for (const text of document.querySelectorAll("[data-tokens]")) setUpTokens(text);
    for (const element of document.querySelectorAll("[data-watch]")) watch(element);
    for (const link of document.querySelectorAll("[data-continue]")) continueSearch(link);
  });
})();
