// heads become buttons here, so that without scripts there is nothing that looks like one
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
      const value = row => row.cells[column].dataset.value;
      const compare = (a, b) => {
        if (value(a) === undefined || value(b) === undefined)  // what is missing stays below, either way
          return (value(a) === undefined) - (value(b) === undefined);
        const numbers = value(a) - value(b);
        return way * (isNaN(numbers) ? value(a).localeCompare(value(b), "en", {numeric: true}) : numbers);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
