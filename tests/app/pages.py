"""What tests do with a page in a browser: open it, look into its model, draw on it."""

from __future__ import annotations


def visit(browser, url, *, query="", state="", dark=False, newcomer=False):
    """A drawn page at 1280x800 that remembers every error and every request."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, color_scheme="dark" if dark else "light", accept_downloads=True
    )
    if not newcomer:
        context.add_init_script("try { localStorage.setItem('posterity.hint', '1') } catch {}")
    page = context.new_page()
    page.errors, page.asked = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda line: page.errors.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(url + state)
    if query:
        page.goto(url.split("?")[0] + query + state)
    page.wait_for_selector("html[data-drawn], .sorry")
    return page


def model(page, code):
    """Something the page's model knows."""
    return page.evaluate(f"() => {{ const m = window.posterity; return {code}; }}")


def eventually(page, code):
    """Wait until something holds; the page's own policy forbids the usual way, which evaluates texts."""
    wanted = (
        f"() => new Promise((done) => {{ const look = () => ({code}) ? done(true) : setTimeout(look, 20); look(); }})"
    )
    assert page.evaluate(wanted)


def drag(page, places, plot=0):
    """Draw a shape, given in shares of the plot's width and height."""
    box = page.locator(".plot .over").nth(plot).bounding_box()
    points = [(box["x"] + 58 + (box["width"] - 72) * x, box["y"] + 14 + (box["height"] - 60) * y) for x, y in places]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=3)
    page.mouse.up()


def ink(page):
    """How many pixels of the points are painted."""
    return page.evaluate(
        """() => {
          const points = document.querySelector(".plot .points"), { width, height } = points;
          const copy = new OffscreenCanvas(width, height).getContext("2d");
          copy.drawImage(points, 0, 0);
          return copy.getImageData(0, 0, width, height).data.filter((v, i) => i % 4 === 3 && v > 40).length;
        }"""
    )
