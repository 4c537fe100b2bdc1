"""Measure `nmt serve` under load: throughput, latency, memory and fairness.

    python scripts/bench_serving.py runs/base test.en --clients 64 --texts 10 --seconds 120

1. `nmt translate` on the lines gives the expected translations, the lines per second without
   start-up, and the CPU seconds per line.
2. `nmt serve` answers --clients clients for --seconds. Each client sends one request at a time. The
   clients run on the same cores, so their CPU time divided by the cores is subtracted from the
   total time. The script prints the throughput with and without this correction.
3. The same load on a simple server that translates one text at a time, as LibreTranslate does.
4. Fairness between clients with API keys: small requests alone, and then together with a client
   that sends requests of maximum size and a client that sends requests byte by byte.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from nmt.device import own_cores
from nmt.files.lines import read_lines

NMT = Path(sys.executable).with_name("nmt")
_TICKS = os.sysconf("SC_CLK_TCK")
_MEMORY_SECONDS = 1.0


def translate(
    model: Path, lines: Sequence[str], flags: Sequence[str]
) -> tuple[list[str], float, float]:
    """Run `nmt translate`; return its translations, wall-clock seconds and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = perf_counter()
    command = [str(NMT), "translate", str(model), "-q", *flags]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = perf_counter() - begin
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    *translations, _ = done.stdout.split("\n")
    return translations, wall, cpu


@contextmanager
def serving(command: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Run a server that prints its address and ``ready``; yield its port and process id."""
    words = list(map(str, command))
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    port = 0
    for line in process.stderr:
        address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if address:
            port = int(address[1])
        if line.rstrip().endswith("ready"):
            break
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def memory_mib(process: int) -> float:
    """Return the resident memory of a process, in MiB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    _, _, numbers = text.rpartition(")")
    fields = numbers.split()
    user = int(fields[11])
    system = int(fields[12])
    return (user + system) / _TICKS


@dataclass
class Load:
    """Result of a load test."""

    seconds: float = 0.0
    texts: int = 0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    others: int = 0
    """Texts whose translation differs from that of `nmt translate`."""
    client_cpu: float = 0.0
    server_cpu: float = 0.0
    memory: list[float] = field(default_factory=list)

    def report(self, name: str, cores: int) -> None:
        """Print the result as one line."""
        own = self.seconds - self.client_cpu / cores
        p50, p95 = percentiles(self.latencies)
        size = -(-len(self.memory) // 4)
        starts = range(0, len(self.memory), size)
        quarters = [self.memory[start : start + size] for start in starts]
        shown = ", ".join(f"{statistics.mean(quarter):.0f}" for quarter in quarters)
        print(
            f"{name}: {self.texts:,} texts in {self.seconds:.1f} s, "
            f"{self.texts / self.seconds:.1f} a second "
            f"({self.texts / own:.1f} without the clients' {self.client_cpu:.1f} CPU s); "
            f"{1000 * self.server_cpu / max(1, self.texts):.1f} CPU ms a text; "
            f"p50 {p50:.2f} s, p95 {p95:.2f} s; errors {self.errors}, other text {self.others}; "
            f"memory in quarters of the time {shown} MiB, {max(self.memory):.0f} at most"
        )

    def texts_a_second(self, cores: int) -> float:
        """Return texts per second, without the CPU time of the clients."""
        return self.texts / (self.seconds - self.client_cpu / cores)


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    if not values:
        return 0.0, 0.0
    if len(values) == 1:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=20)
    return statistics.median(values), cuts[18]


def ask(
    port: int, known: Mapping[str, str], clients: int, texts: int, seconds: float, process: int
) -> Load:
    """Run clients that send requests one after another for ``seconds``; return the result."""
    load = Load()
    lock = threading.Lock()
    numbers = count()
    lines = list(known)
    end = perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while perf_counter() < end:
            with lock:
                start = next(numbers) * texts
            first = start % len(lines)
            own = list(islice(cycle(lines), first, first + texts))
            begin = perf_counter()
            values = post(connection, {"texts": own, "split": False})
            took = perf_counter() - begin
            with lock:
                load.latencies.append(took)
                if values is None:
                    load.errors += 1
                    continue
                outputs = [each.get("translation") for each in values["translations"]]
                load.texts += len(outputs)
                for text, output in zip(own, outputs, strict=True):
                    if known[text] != output:
                        load.others += 1
        connection.close()

    begin = perf_counter()
    client_before = time.process_time()
    server_before = cpu_seconds(process)
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        load.memory.append(memory_mib(process))
        time.sleep(_MEMORY_SECONDS)
    load.seconds = perf_counter() - begin
    load.client_cpu = time.process_time() - client_before
    load.server_cpu = cpu_seconds(process) - server_before
    return load


def post(connection: http.client.HTTPConnection, body: Any, key: str = "") -> Any:
    """Return the JSON answer to a request; None if the status is not 200."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    text = json.dumps(body)
    connection.request("POST", "/v1/translate", text.encode(), headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        return None
    return json.loads(content)


def one_at_a_time(model: str, threads: str) -> None:
    """Run a simple server: one thread per request, one text translated at a time."""
    from nmt.inference.translator import Translator  # noqa: PLC0415 - in a process of its own

    translator = Translator.load(model, threads=int(threads))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked = json.loads(self.rfile.read(length))
            found = []
            for text in asked["texts"]:
                with lock:
                    (result,) = translator.translate([text])
                found.append({"translation": result.text})
            content = json.dumps({"translations": found}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024

    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}\nready", file=sys.stderr, flush=True)
    server.serve_forever()


def fairness(start: Callable[..., list[object]], lines: Sequence[str], seconds: float) -> None:
    """Print the latency of small requests, alone and together with a huge and a slow client."""
    names = [f"client{number}" for number in range(6)]
    keys = {name: f"{name}-0123456789abcdef" for name in names}
    secrets = list(keys.values())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name} {key}\n" for name, key in keys.items())
        file.flush()
        command = start("--api-keys", file.name)
        with serving(command) as (port, _):
            ways = {"alone": False, "together with a huge and a slow client": True}
            for name, beside in ways.items():
                latencies = small_requests(port, lines, seconds, secrets, beside=beside)
                p50, p95 = percentiles(latencies)
                print(f"small requests {name}: {len(latencies)}, p50 {p50:.2f} s, p95 {p95:.2f} s")


def small_requests(
    port: int, lines: Sequence[str], seconds: float, keys: Sequence[str], *, beside: bool
) -> list[float]:
    """Return the latencies of four clients that send one text per request, in seconds."""
    end = perf_counter() + seconds
    latencies: list[float] = []

    def repeat(key: str, texts: int, own: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for number in count():
            if perf_counter() > end:
                break
            begin = perf_counter()
            asked = list(islice(cycle(lines), number, number + texts))
            body = {"texts": asked}
            assert post(connection, body, key) is not None
            own.append(perf_counter() - begin)
        connection.close()

    threads = []
    for key in keys[:4]:
        small = (key, 1, latencies)
        threads.append(threading.Thread(target=repeat, args=small))
    if beside:
        unused: list[float] = []
        huge = (keys[4], 100, unused)
        threads += [threading.Thread(target=repeat, args=huge) for _ in range(2)]
        slow = (port, lines[0], keys[5], end)
        threads.append(threading.Thread(target=dribble, args=slow))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies


def dribble(port: int, text: str, key: str, end: float) -> None:
    """Send requests byte by byte until ``end``."""
    content = json.dumps({"texts": [text]}).encode()
    head = f"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    while perf_counter() < end:
        connection = socket.create_connection(("127.0.0.1", port))
        with connection, suppress(OSError):
            for byte in head.encode() + content:
                if perf_counter() > end:
                    break
                connection.sendall(bytes([byte]))
                time.sleep(0.02)


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--limit", type=int, default=1000, help="maximum number of lines")
    parser.add_argument("--clients", type=int, default=64, help="concurrent clients")
    parser.add_argument("--texts", type=int, default=10, help="texts per request")
    parser.add_argument("--seconds", type=float, default=120.0, help="duration of part 2")
    parser.add_argument(
        "--simple-seconds", type=float, default=40.0, help="duration of parts 3 and 4; 0: skip"
    )
    parser.add_argument("--threads", type=int, default=own_cores(), help="CPU threads")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    not_empty = filter(str.strip, read_lines(options.lines))
    lines = list(dict.fromkeys(islice(not_empty, options.limit)))
    flags = ["--threads", str(options.threads), "--dtype", options.dtype]
    translate(options.model, lines[:1], flags)  # the first start converts the model
    _, idle, idle_cpu = translate(options.model, lines[:1], flags)
    texts, wall, cpu = translate(options.model, lines, flags)
    num_lines = len(lines)
    rate = (num_lines - 1) / (wall - idle)
    cpu_ms = 1000 * (cpu - idle_cpu) / num_lines
    print(
        f"nmt translate: {num_lines:,} lines in {wall:.1f} s, {idle:.1f} of them for one line; "
        f"{rate:.1f} a second; {cpu_ms:.1f} CPU ms a line"
    )
    known = dict(zip(lines, texts, strict=True))

    def start(*more: object) -> list[object]:
        bounds = ["--rate", "1000000/s", "--deadline", "600", "--port", "0"]
        return [NMT, "serve", options.model, *flags, *bounds, *more]

    clients = options.clients
    num_texts = options.texts
    with serving(start()) as (port, process):
        load = ask(port, known, clients, num_texts, options.seconds, process)
    load.report("nmt serve", options.threads)
    ratio = load.texts_a_second(options.threads) / rate
    print(f"nmt serve reaches {ratio:.2f} times the throughput of nmt translate")
    if options.simple_seconds:
        simple = [sys.executable, __file__, "--one-at-a-time", options.model, options.threads]
        with serving(simple) as (port, process):
            load = ask(port, known, clients, num_texts, options.simple_seconds, process)
        load.report("one text at a time", options.threads)
        fairness(start, lines, options.simple_seconds / 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one-at-a-time"]:
        one_at_a_time(*sys.argv[2:])
    else:
        main()
