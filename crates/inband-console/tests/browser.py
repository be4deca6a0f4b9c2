"""Clicks through the console at the address given, as its user would, in Debian's Chromium."""

import sys

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

TIMEOUT_S = 120
HOST = "node/3"
# Whether the chart has a pixel of the faults' color where the fault was.
IS_DRAWN = """
const chart = charts.throughput;
const mark = marks.find((mark) => mark.text === "kill node/3");
if (!mark) return false;
showCharts();
const x = Math.round(chart.valToPos(mark.at_ms / 1000, "x", true));
const { top, height } = chart.bbox;
const pixels = chart.ctx.getImageData(x - 1, top + height / 2, 3, 1).data;
const [r, g, b] = color("--bad").match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
for (let at = 0; at < pixels.length; at += 4) {
  const near = (value, wanted) => Math.abs(value - wanted) < 60;
  if (near(pixels[at], r) && near(pixels[at + 1], g) && near(pixels[at + 2], b)) return true;
}
return false;
"""


def main(url):
    options = webdriver.ChromeOptions()
    for option in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1300,1400"]:
        options.add_argument(option)
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    try:
        click_through(browser, url)
        problems = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        assert not problems, problems
    finally:
        browser.quit()


def click_through(browser, url):
    wait = WebDriverWait(browser, TIMEOUT_S)
    find = browser.find_element
    browser.get(url)
    card = wait.until(lambda _: find(By.CSS_SELECTOR, f"[data-host='{HOST}']"))
    state = lambda: card.find_element(By.CLASS_NAME, "state").text
    wait.until(lambda _: state() == "running")
    assert len(browser.find_elements(By.CLASS_NAME, "host")) == 3
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".leads:not([hidden])"))

    find(By.CSS_SELECTOR, "#load [type=submit]").click()
    wait.until(lambda _: browser.execute_script("return buckets.some((bucket) => bucket.ended > 0)"))

    # With the keyboard, as somebody without a mouse.
    kill = find(By.CSS_SELECTOR, f"[aria-label='Kill {HOST}']")
    browser.execute_script("arguments[0].focus()", kill)
    kill.send_keys(Keys.ENTER)
    wait.until(lambda _: state() == "killed")
    events = lambda: [item.text for item in browser.find_elements(By.CSS_SELECTOR, "#events .fault")]
    wait.until(lambda _: any(f"kill {HOST}" in text for text in events()))
    wait.until(lambda _: browser.execute_script(IS_DRAWN))
    find(By.CSS_SELECTOR, f"[aria-label='Restart {HOST}']").click()
    wait.until(lambda _: state() == "running")

    find(By.NAME, "key").send_keys("greeting")
    find(By.NAME, "value").send_keys("<b>hello</b>")
    said = lambda: find(By.ID, "key-said").text
    find(By.CSS_SELECTOR, "#keys [value=set]").click()
    wait.until(lambda _: said() == "greeting = <b>hello</b>")
    find(By.CSS_SELECTOR, "#keys [value=each]").click()
    replicas = lambda: [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#replicas td")]
    wait.until(lambda _: replicas() == ["<b>hello</b>"] * 3)
    # It is asked again by itself; a replica that is lost says why.
    find(By.CSS_SELECTOR, f"[aria-label='Kill {HOST}']").click()
    wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, "#replicas tr.down")) == 1)
    assert replicas().count("<b>hello</b>") == 2, replicas()
    find(By.CSS_SELECTOR, f"[aria-label='Restart {HOST}']").click()
    wait.until(lambda _: replicas() == ["<b>hello</b>"] * 3)
    find(By.CSS_SELECTOR, "#keys [value=delete]").click()
    wait.until(lambda _: said() == "deleted")


main(sys.argv[1])
