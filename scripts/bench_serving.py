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
    # The CPU time of all ended child processes.
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = perf_counter()
    command = [str(NMT), "translate", str(model), "-q", *flags]
    text = "".join(f"{line}\n" for line in lines)
    completed = subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, check=True)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_seconds = perf_counter() - begin
    user_seconds = usage.ru_utime - usage_before.ru_utime
    system_seconds = usage.ru_stime - usage_before.ru_stime
    *translations, _ = completed.stdout.split("\n")  # The last line ends with a line feed.
    return translations, wall_seconds, user_seconds + system_seconds


@contextmanager
def serving(command: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Run a server that prints its address and ``ready``; yield its port and process id."""
    arguments = list(map(str, command))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    port = 0
    for line in process.stderr:
        address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if address:
            port = int(address[1])
        if line.rstrip().endswith("ready"):
            break
    # Read further messages; the server would wait if the pipe was full.
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
    status = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    # The second field is the name in brackets, which may contain spaces. Fields 14 and 15 are the
    # times in user and in system mode.
    _, _, text_after_name = status.rpartition(")")
    fields = text_after_name.split()
    user_ticks = int(fields[11])
    system_ticks = int(fields[12])
    return (user_ticks + system_ticks) / _TICKS


@dataclass
class Load:
    """Result of a load test."""

    seconds: float = 0.0
    num_texts: int = 0
    latencies: list[float] = field(default_factory=list)
    """Seconds of each request."""
    num_errors: int = 0
    num_different: int = 0
    """Texts whose translation differs from that of `nmt translate`."""
    client_cpu: float = 0.0
    """CPU seconds of the clients."""
    server_cpu: float = 0.0
    """CPU seconds of the server."""
    memory: list[float] = field(default_factory=list)
    """Resident memory of the server in MiB, measured at equal intervals."""

    def report(self, name: str, cores: int) -> None:
        """Print the result as one line."""
        p50, p95 = percentiles(self.latencies)
        quarter_size = -(-len(self.memory) // 4)  # rounded up
        starts = range(0, len(self.memory), quarter_size)
        quarters = [self.memory[start : start + quarter_size] for start in starts]
        memory_text = ", ".join(f"{statistics.mean(quarter):.0f}" for quarter in quarters)
        print(
            f"{name}: {self.num_texts:,} texts in {self.seconds:.1f} s, "
            f"{self.num_texts / self.seconds:.1f} a second "
            f"({self.texts_a_second(cores):.1f} without the clients' {self.client_cpu:.1f} CPU s); "
            f"{1000 * self.server_cpu / max(1, self.num_texts):.1f} CPU ms a text; "
            f"p50 {p50:.2f} s, p95 {p95:.2f} s; "
            f"errors {self.num_errors}, other text {self.num_different}; "
            f"memory in quarters of the time {memory_text} MiB, {max(self.memory):.0f} at most"
        )

    def texts_a_second(self, cores: int) -> float:
        """Return texts per second, without the time that the clients took on the same cores."""
        return self.num_texts / (self.seconds - self.client_cpu / cores)


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    if not values:
        return 0.0, 0.0
    if len(values) == 1:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=20)  # the 5th percentile, the 10th, ..., the 95th
    return statistics.median(values), cuts[-1]


def measure_load(
    port: int,
    translations: Mapping[str, str],
    num_clients: int,
    num_texts: int,
    seconds: float,
    process: int,
) -> Load:
    """Run clients that send requests one after another for ``seconds``; return the result.

    Args:
        port: Port of the server.
        translations: Expected translation of each text.
        num_clients: Number of clients, which send requests at the same time.
        num_texts: Texts of each request.
        seconds: Time after which a client sends no further request.
        process: Process id of the server.
    """
    load = Load()
    lock = threading.Lock()  # of ``load`` and ``request_numbers``
    request_numbers = count()
    lines = list(translations)
    end = perf_counter() + seconds

    def run_client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while perf_counter() < end:
            with lock:
                request_number = next(request_numbers)
            # The requests of all clients together go through the lines again and again.
            first = request_number * num_texts % len(lines)
            texts = list(islice(cycle(lines), first, first + num_texts))
            request_begin = perf_counter()
            answer = post(connection, {"texts": texts, "split": False})
            latency = perf_counter() - request_begin
            with lock:
                load.latencies.append(latency)
                if answer is None:
                    load.num_errors += 1
                    continue
                outputs = [entry.get("translation") for entry in answer["translations"]]
                load.num_texts += len(outputs)
                for text, output in zip(texts, outputs, strict=True):
                    if translations[text] != output:
                        load.num_different += 1
        connection.close()

    begin = perf_counter()
    client_cpu_before = time.process_time()
    server_cpu_before = cpu_seconds(process)
    threads = [threading.Thread(target=run_client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        load.memory.append(memory_mib(process))
        time.sleep(_MEMORY_SECONDS)
    load.seconds = perf_counter() - begin
    load.client_cpu = time.process_time() - client_cpu_before
    load.server_cpu = cpu_seconds(process) - server_cpu_before
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
            request = json.loads(self.rfile.read(length))
            translations = []
            for text in request["texts"]:
                with lock:
                    (result,) = translator.translate([text])
                translations.append({"translation": result.text})
            content = json.dumps({"translations": translations}).encode()
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
    """Print the latency of small requests, alone and together with a huge and a slow client.

    Args:
        start: Returns the command of a server with additional flags.
        lines: Texts to translate.
        seconds: Duration of each of the two measurements.
    """
    names = [f"client{index}" for index in range(6)]
    keys = {name: f"{name}-0123456789abcdef" for name in names}
    key_values = list(keys.values())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name} {key}\n" for name, key in keys.items())
        file.flush()
        command = start("--api-keys", file.name)
        with serving(command) as (port, _):
            company = {"alone": False, "together with a huge and a slow client": True}
            for text, has_others in company.items():
                latencies = small_requests(port, lines, seconds, key_values, has_others=has_others)
                p50, p95 = percentiles(latencies)
                print(f"small requests {text}: {len(latencies)}, p50 {p50:.2f} s, p95 {p95:.2f} s")


def small_requests(
    port: int, lines: Sequence[str], seconds: float, keys: Sequence[str], *, has_others: bool
) -> list[float]:
    """Return the latencies of four clients that send one text per request, in seconds.

    Args:
        port: Port of the server.
        lines: Texts to translate.
        seconds: Duration of the measurement.
        keys: Six API keys: four of the clients, one of the huge and one of the slow client.
        has_others: Whether the huge and the slow client send requests, too.
    """
    end = perf_counter() + seconds
    small_latencies: list[float] = []

    def repeat(key: str, num_texts: int, latencies: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for first in count():
            if perf_counter() > end:
                break
            begin = perf_counter()
            texts = list(islice(cycle(lines), first, first + num_texts))
            body = {"texts": texts}
            assert post(connection, body, key) is not None
            latencies.append(perf_counter() - begin)
        connection.close()

    threads = []
    for key in keys[:4]:
        small = (key, 1, small_latencies)
        threads.append(threading.Thread(target=repeat, args=small))
    if has_others:
        ignored_latencies: list[float] = []
        huge = (keys[4], 100, ignored_latencies)
        threads += [threading.Thread(target=repeat, args=huge) for _ in range(2)]
        slow = (port, lines[0], keys[5], end)
        threads.append(threading.Thread(target=dribble, args=slow))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return small_latencies


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
    _, start_seconds, start_cpu = translate(options.model, lines[:1], flags)
    outputs, seconds, cpu = translate(options.model, lines, flags)
    num_lines = len(lines)
    # The time of one line is subtracted, because it is nearly all start-up.
    rate = (num_lines - 1) / (seconds - start_seconds)
    cpu_ms = 1000 * (cpu - start_cpu) / num_lines
    print(
        f"nmt translate: {num_lines:,} lines in {seconds:.1f} s, "
        f"{start_seconds:.1f} of them for one line; "
        f"{rate:.1f} a second; {cpu_ms:.1f} CPU ms a line"
    )
    translations = dict(zip(lines, outputs, strict=True))

    def server_command(*more_flags: object) -> list[object]:
        limits = ["--rate", "1000000/s", "--deadline", "600", "--cache", "0", "--port", "0"]
        return [NMT, "serve", options.model, *flags, *limits, *more_flags]

    num_clients = options.clients
    num_texts = options.texts
    with serving(server_command()) as (port, process):
        load = measure_load(port, translations, num_clients, num_texts, options.seconds, process)
    load.report("nmt serve", options.threads)
    ratio = load.texts_a_second(options.threads) / rate
    print(f"nmt serve reaches {ratio:.2f} times the throughput of nmt translate")
    if options.simple_seconds:
        seconds = options.simple_seconds
        simple = [sys.executable, __file__, "--one-at-a-time", options.model, options.threads]
        with serving(simple) as (port, process):
            load = measure_load(port, translations, num_clients, num_texts, seconds, process)
        load.report("one text at a time", options.threads)
        fairness(server_command, lines, seconds / 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one-at-a-time"]:
        one_at_a_time(*sys.argv[2:])
    else:
        main()
