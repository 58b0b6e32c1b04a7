"""The explorer in a real browser, from disk: what it shows is what the CSV files hold.

`python docs/build.py FOLDER && SOFTGEN_SITE=FOLDER pytest tests/site`. It takes Chromium and its
driver. Where no site was built nothing is run; where one was, a missing browser is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softgen.bench.record import Record, read_csv
from tests.figures import DOCS

SITE = Path(os.environ.get("SOFTGEN_SITE", ""))
pytestmark = pytest.mark.skipif(Path() == SITE, reason="SOFTGEN_SITE names no folder of a site")
PHONE, DESK = (390, 844), (1200, 900)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program = shutil.which("chromium") or shutil.which("google-chrome")
    service = shutil.which("chromedriver")
    assert program, "there is no browser: apt-get install chromium"
    assert service, "there is no driver of the browser: apt-get install chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(service))
    yield driver
    driver.quit()


def opened(
    browser: Any, page: str, size: tuple[int, int] = DESK, scheme: str = "light"
) -> list[str]:
    """Open a page of the site from disk, and return what its console says."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("browser")
    browser.get((SITE / page).as_uri())
    return [each["message"] for each in browser.get_log("browser")]


def press(browser: Any, *keys: str) -> None:
    browser.switch_to.active_element.send_keys(*keys)


def tab_to(browser: Any, name: str) -> None:
    """Press Tab until the element of that id has the focus."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(60):
        if browser.switch_to.active_element.get_attribute("id") == name:
            return
        press(browser, Keys.TAB)
    raise AssertionError(f"no key leads to {name}")


def shown(browser: Any) -> dict[str, list[str]]:
    """Return the table of the chosen call: the cells of each competitor."""
    return dict(
        browser.execute_script(
            "return [...document.querySelectorAll('#chosen tbody tr')].map("
            "row => [row.dataset.peer, [...row.cells].slice(1, 4).map(cell => cell.textContent)])"
        )
    )


def timed(file: str, dtype: str, rows: int, cols: int) -> dict[str, Record]:
    return {
        each.peer: each
        for each in read_csv(DOCS / "benchmark" / f"{file}.csv")
        if (each.dtype, each.rows, each.cols) == (dtype, rows, cols) and each.microseconds
    }


def agrees(table: dict[str, list[str]], records: dict[str, Record]) -> bool:
    assert table.keys() == records.keys()
    return all(
        [float(cell) for cell in cells]
        == [each.microseconds, each.gigabytes_per_second, each.ratio_to_limit]
        for peer, cells in table.items()
        for each in [records[peer]]
    )


def test_keys_choose_a_suite_and_a_point_and_show_the_values_of_the_file(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    assert opened(browser, "explorer/index.html") == []
    tab_to(browser, "suite")
    press(browser, "llm")
    assert browser.find_element("id", "suite").get_attribute("value") == "llm"
    tab_to(browser, "rows")
    press(browser, "8192")
    tab_to(browser, "plot")
    press(browser, Keys.HOME)
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.find_element("css selector", "#chosen h2").text == "bfloat16 8192 x 4096"
    records = timed("llm", "bfloat16", 8192, 4096)
    assert agrees(shown(browser), records)
    told = browser.find_element("id", "chosen").text
    assert f"softmax_bf16_4096_{records['softgen'].note}" in told
    assert "softgen bench --suite llm" in told


def test_the_kernel_of_a_point_is_there_to_read(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, "explorer/index.html")
    summary = browser.find_element("css selector", "#chosen summary")
    browser.execute_script("arguments[0].focus()", summary)
    press(browser, Keys.ENTER)
    text = WebDriverWait(browser, 5).until(
        lambda page: (
            "__global__" in page.find_element("id", "emitted").get_attribute("textContent")
            and page.find_element("id", "emitted").get_attribute("textContent")
        )
    )
    assert 'extern "C"' in text


def test_a_click_chooses_the_point_under_it(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, "explorer/index.html")
    over = browser.find_element("css selector", "#plot .u-over")
    first = browser.find_element("css selector", "#chosen h2").text
    ActionChains(browser).move_to_element_with_offset(over, 60, 10).click().perform()
    second = browser.find_element("css selector", "#chosen h2").text
    assert second.startswith("float32 4096 x ")
    assert second != first
    assert agrees(shown(browser), timed("triton", "float32", 4096, int(second.split()[-1])))


def test_every_suite_draws_by_every_measure(browser: Any) -> None:
    assert opened(browser, "explorer/index.html") == []
    failed = browser.execute_script("""
        const failed = [];
        for (const each of DATA.suites) for (const how of Object.keys(MEASURES)) {
          suite.value = each.name; suite.dispatchEvent(new Event("change"));
          measure.value = how; measure.dispatchEvent(new Event("change"));
          if (!document.querySelector("#plot canvas") || !document.querySelector("#chosen td"))
            failed.push(each.name + " " + how);
        }
        return failed;
    """)
    assert failed == []
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
    names = browser.execute_script("return DATA.suites.map(each => each.name)")
    assert set(names) == {path.stem for path in (DOCS / "benchmark").glob("*.csv")} - {"grid"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize(
    "page", ["index.html", "explorer/index.html", "strategies.html", "results/losses.html"]
)
def test_nothing_is_wider_than_the_screen(
    browser: Any, page: str, size: tuple[int, int], scheme: str
) -> None:
    opened(browser, page, size, scheme)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= size[0], f"{page} is {width} pixels wide"
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in ground.strip("rgba()").split(",")[:3]) > 384
    assert light is (scheme == "light"), ground
