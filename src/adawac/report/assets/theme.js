// Before anything is painted: dark if the reader chose it here, or else if the system is.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const read = () => { try { return localStorage.getItem("adawac-theme"); } catch { return null; } };
  let chosen = read();
  const apply = () => {
    const theme = print.matches ? "light" : chosen || (dark.matches ? "dark" : "light");
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("theme"));
  };
  document.addEventListener("choose-theme", (event) => {
    chosen = event.detail;
    try { localStorage.setItem("adawac-theme", chosen); } catch { /* a browser that keeps nothing for files */ }
    apply();
  });
  dark.addEventListener("change", apply);
  print.addEventListener("change", apply);
  apply();
})();
