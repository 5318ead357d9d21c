// Runs after the scripts of a page. It searches the site, and replaces the page by the result as text.
(() => {
  const wrong = window.problems;
  const check = (holds, what) => { if (!holds) wrong.push(what); };
  const results = () => document.querySelectorAll("#mdbook-searchresults a");
  let isDone = false;
  const finish = () => {
    if (isDone) return;
    isDone = true;
    clearInterval(search);
    check(results().length > 0, "the search finds nothing");
    check([...results()].every((result) => result.getAttribute("href").includes(".html")), "a result leads nowhere");
    check(document.querySelector("main h1"), "the page has no title");
    const contents = document.querySelectorAll("#mdbook-sidebar a");
    check(contents.length > 40, `the table of contents has ${contents.length} links`);
    check([...document.querySelectorAll("main img")].every((image) => image.naturalWidth > 0), "an image is missing");
    const { scrollWidth } = document.documentElement;
    check(scrollWidth <= innerWidth, `the page is ${scrollWidth} wide, the window ${innerWidth}`);
    const foreign = performance.getEntriesByType("resource").find((entry) => !entry.name.startsWith("file:"));
    check(!foreign, `${foreign?.name} was loaded`);
    const result = document.createElement("pre");
    result.id = "result";
    result.textContent = wrong.length === 0 ? `sound: ${contents.length} pages, ${results().length} results` : `wrong: ${wrong.join("; ")}`;
    document.body.replaceChildren(result);
  };
  // The index of the search comes after the page.
  const bar = document.querySelector("#mdbook-searchbar");
  const search = setInterval(() => {
    if (results().length > 0) return finish();
    bar.value = "packet loss";
    bar.dispatchEvent(new InputEvent("input", { bubbles: true }));
    bar.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
  }, 200);
  setTimeout(finish, 8000);
  document.querySelector("#mdbook-search-toggle").click();
})();
