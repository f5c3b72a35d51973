"use strict";
// Draws the charts: unpacks Plotly where it is packed into this file, and takes its colours from the page,
// again whenever the reader changes between light, dark and paper.
(async () => {
  const packed = document.getElementById("plotly-packed");
  if (packed) {
    const bytes = fromBase85(packed.textContent);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const source = document.createElement("script");
    source.textContent = await new Response(stream).text();
    document.head.append(source);
  }

  // Python's base85 alphabet, with a comma for "<": five digits hold four bytes.
  function fromBase85(text) {
    const digits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
    const value = new Uint8Array(128);
    for (let digit = 0; digit < digits.length; digit += 1) value[digits.charCodeAt(digit)] = digit;
    const bytes = new Uint8Array(Math.ceil(text.length / 5) * 4);
    for (let from = 0, to = 0; from < text.length; from += 5) {
      let word = 0;
      for (let at = from; at < from + 5; at += 1) {
        word = word * 85 + (at < text.length ? value[text.charCodeAt(at)] : 84);
      }
      for (let shift = 24; shift >= 0; shift -= 8, to += 1) bytes[to] = word >>> shift;
    }
    return bytes.subarray(0, Math.floor((text.length * 4) / 5));
  }

  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const coarse = matchMedia("(pointer: coarse)").matches;
  const PAPER_WIDTH = 660;

  function dressed(layout, width, onPaper) {
    const style = getComputedStyle(document.documentElement);
    const ink = onPaper ? "#1b1f24" : style.getPropertyValue("--ink").trim();
    const line = onPaper ? "#d6dbe0" : style.getPropertyValue("--line").trim();
    const shade = onPaper ? "#ffffff" : style.getPropertyValue("--shade").trim();
    const axis = (own) => ({
      gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, ...own,
      title: { standoff: 10, ...own?.title },
    });
    const narrow = width < 560;
    return {
      ...layout,
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis), width,
      height: layout.height,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'DejaVu Sans', sans-serif", size: narrow ? 11 : 12.5, color: ink },
      margin: { l: narrow ? 46 : 64, r: 16, t: 12, b: 52 },
      showlegend: false,
      hoverlabel: { bgcolor: shade, bordercolor: line, font: { color: ink } },
      dragmode: coarse ? false : "zoom",
    };
  }

  // The legend is the page's own: it wraps on a phone, prints, and never covers the plot.
  function legend(chart, traces) {
    const named = traces.filter((trace) => trace.name);
    if (named.length < 2) return;
    const list = document.createElement("ul");
    list.className = "legend";
    for (const trace of named) {
      const swatch = document.createElement("span");
      const drawn = trace.mode?.includes("lines");
      swatch.className = drawn ? "line" : trace.mode ? "dot" : "box";
      const style = { dash: "dashed", longdash: "dashed", dot: "dotted", dashdot: "dashed" }[trace.line?.dash] ?? "solid";
      swatch.style.cssText = drawn
        ? `border-top-color:${trace.line.color};border-top-style:${style}`
        : `background:${trace.marker.color};opacity:${trace.marker.opacity ?? 1}`;
      const item = document.createElement("li");
      item.append(swatch, trace.name);
      list.append(item);
    }
    chart.before(list);
  }
  for (const chart of charts) legend(chart, figures[chart.dataset.figure].data);

  let onPaper = false;
  function draw() {
    for (const chart of charts) {
      const figure = figures[chart.dataset.figure];
      const width = onPaper ? PAPER_WIDTH : Math.max(200, Math.floor(chart.getBoundingClientRect().width));
      Plotly.react(chart, figure.data, dressed(structuredClone(figure.layout), width, onPaper),
        { displaylogo: false, displayModeBar: false, doubleClick: "reset" });
      chart.dataset.drawn = "yes";
    }
  }

  draw();
  let waiting = 0;
  let lastWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === lastWidth || onPaper) return;
    lastWidth = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const folded = new Set();
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((part) => { folded.add(part); part.open = true; });
    onPaper = true;
    draw();
  });
  addEventListener("afterprint", () => {
    folded.forEach((part) => { part.open = false; });
    folded.clear();
    onPaper = false;
    draw();
  });
  document.documentElement.dataset.charts = "drawn";
})();
