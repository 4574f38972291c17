"""What is rendered when, and what every scraper gets."""

import gzip
import threading
from collections.abc import Callable

import pytest

from gpumon.export.prometheus import Exposition
from gpumon.export.scrape import ScrapeCache
from gpumon.export.text import Format, Page
from gpumon.model import Sample
from gpumon.store import Store, View
from tests.export.views import family

GAUGE = family("speed", labels=())
OPENMETRICS = "application/openmetrics-text"


class Counting:
    """A renderer that counts, and that can be held up."""

    def __init__(self) -> None:
        self.pages = 0
        self.before: Callable[[], object] = lambda: None
        self._exposition = Exposition((GAUGE,))

    def __call__(self, view: View) -> Page:
        self.before()
        self.pages += 1
        return self._exposition.render(view)


@pytest.fixture
def store() -> Store:
    store = Store()
    put(store, 0.0, 1.0)
    return store


def put(store: Store, at_s: float, value: float, ttl_s: float = 1000.0) -> None:
    store.put("x", at_s, [Sample(GAUGE, (), value)], ttl_s)


def body(value: float) -> bytes:
    return f"# HELP gpumon_speed What it is.\n# TYPE gpumon_speed gauge\ngpumon_speed {value!r}\n".encode()


def test_the_four_forms_hold_the_same_and_say_what_they_are(store: Store) -> None:
    cache = ScrapeCache(store.view, Exposition((GAUGE,)).render)
    plain = cache.scrape(None, None, 0.0)
    assert plain.status == 200
    assert plain.body == body(1.0)
    assert plain.headers == [
        (b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),
        (b"content-length", str(len(plain.body)).encode()),
        (b"vary", b"accept, accept-encoding"),
    ]
    packed = cache.scrape(None, "gzip", 0.0)
    assert gzip.decompress(packed.body) == plain.body
    assert (b"content-encoding", b"gzip") in packed.headers
    assert (b"content-length", str(len(packed.body)).encode()) in packed.headers
    openmetrics = cache.scrape(OPENMETRICS, None, 0.0)
    assert openmetrics.body == plain.body + b"# EOF\n"
    assert openmetrics.headers[0][1] == b"application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert gzip.decompress(cache.scrape(OPENMETRICS, "gzip", 0.0).body) == openmetrics.body


def test_a_page_serves_for_the_least_interval_and_then_only_while_nothing_changed(store: Store) -> None:
    render = Counting()
    cache = ScrapeCache(store.view, render, min_interval_s=1.0)
    assert cache.scrape(None, None, 0.0).body == body(1.0)
    put(store, 0.5, 2.0)
    assert cache.scrape(None, None, 0.999).body == body(1.0)
    assert cache.scrape(None, None, 1.0).body == body(2.0)
    assert cache.scrape(None, None, 50.0).body == body(2.0)
    assert render.pages == 2


def test_a_page_ends_with_its_first_batch_however_young_it_is(store: Store) -> None:
    cache = ScrapeCache(store.view, Counting(), min_interval_s=100.0)
    put(store, 0.0, 1.0, ttl_s=5.0)
    assert cache.scrape(None, None, 4.0).body == body(1.0)
    assert cache.scrape(None, None, 5.0).body == body(1.0)
    assert cache.ready(None, None, 5.5) is None
    assert cache.scrape(None, None, 5.5).body == b""


def test_ready_answers_only_what_needs_no_work(store: Store) -> None:
    render = Counting()
    cache = ScrapeCache(store.view, render, min_interval_s=1.0)
    assert cache.ready(None, "gzip", 0.0) is None
    scraped = cache.scrape(None, "gzip", 0.0)
    assert cache.ready(None, "gzip", 0.5) == scraped
    assert cache.ready(OPENMETRICS, "gzip", 0.5) is None
    assert cache.ready(None, "gzip", 1.0) is None
    assert render.pages == 1


def test_refresh_does_nothing_until_somebody_scrapes_and_again_a_minute_after(store: Store) -> None:
    render = Counting()
    cache = ScrapeCache(store.view, render, min_interval_s=1.0, watched_s=60.0)
    assert cache.refresh(0.0) is False
    cache.scrape(OPENMETRICS, "gzip", 0.0)
    put(store, 10.0, 2.0)
    assert cache.refresh(10.0) is True
    ready = cache.ready(OPENMETRICS, "gzip", 10.5)
    assert ready is not None
    assert gzip.decompress(ready.body) == body(2.0) + b"# EOF\n"
    assert cache.ready(None, None, 10.5) is None
    put(store, 71.0, 3.0)
    assert cache.refresh(71.0) is False
    assert render.pages == 2


def test_refresh_renders_at_most_once_per_interval(store: Store) -> None:
    render = Counting()
    cache = ScrapeCache(store.view, render, min_interval_s=1.0)
    cache.scrape(None, None, 0.0)
    for tick in range(1, 101):
        put(store, tick / 10, float(tick))
        cache.refresh(tick / 10)
    assert render.pages == 11


def test_scrapers_that_come_while_a_page_is_made_wait_for_it_and_share_it(store: Store) -> None:
    render = Counting()
    cache = ScrapeCache(store.view, render)
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert go_on.wait(10)

    render.before = hold
    bodies: list[bytes] = []
    # The later ones read the clock before the first: they must not make it render again.
    scrapers = [
        threading.Thread(target=lambda at_s=at_s: bodies.append(cache.scrape(None, None, at_s).body))
        for at_s in (0.5, 0.4, 0.3, 0.6)
    ]
    scrapers[0].start()
    assert entered.wait(10)
    for scraper in scrapers[1:]:
        scraper.start()
    assert cache.ready(None, None, 0.5) is None
    go_on.set()
    for scraper in scrapers:
        scraper.join(10)
    assert bodies == [body(1.0)] * 4
    assert render.pages == 1


def test_a_page_that_could_not_be_made_does_not_keep_the_next_from_being_made(store: Store) -> None:
    render = Counting()
    cache = ScrapeCache(store.view, render)

    def fail() -> None:
        raise MemoryError

    render.before = fail
    with pytest.raises(MemoryError):
        cache.scrape(None, None, 0.0)
    render.before = lambda: None
    assert cache.scrape(None, None, 0.0).body == body(1.0)


def test_equal_pages_are_equal_bytes_so_that_a_reader_can_compare_them(store: Store) -> None:
    one = ScrapeCache(store.view, Exposition((GAUGE,)).render).scrape(None, "gzip", 0.0)
    other = ScrapeCache(store.view, Exposition((GAUGE,)).render).scrape(None, "gzip", 0.5)
    assert one == other


def test_names_that_openmetrics_forbids_are_always_text(store: Store) -> None:
    cache = ScrapeCache(store.view, Exposition((GAUGE,)).render, text_only=True)
    assert cache.scrape(OPENMETRICS, None, 0.0).headers[0][1].startswith(Format.TEXT.partition(";")[0].encode())
