// @ts-check
// Runs before the first paint: a page that flashes white in a dark room is unkind.
(() => {
  const chosen = localStorage.getItem("tensortap.theme");
  const isLight = chosen ? chosen === "light" : matchMedia("(prefers-color-scheme: light)").matches;
  document.documentElement.dataset.theme = isLight ? "light" : "dark";
})();
