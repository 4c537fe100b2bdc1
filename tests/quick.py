"""`nmt` for tests that run dozens of commands: each is forked from a process that has loaded torch.

Loading torch takes seconds, most of the time of a short command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.process import limited

CLIENT = """#!{python} -ES
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
call = json.dumps([os.getcwd(), dict(os.environ), sys.argv]).encode()
socket.send_fds(server, [call], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""
SERVER = """
import gc, importlib, json, os, pkgutil, socket, sys
from nmt import commands
from nmt.cli import main
for module in pkgutil.iter_modules(commands.__path__, "nmt.commands."):
    importlib.import_module(module.name)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
gc.freeze()
print(flush=True)
while connection := listener.accept()[0]:
    if os.fork() == 0:
        break
    connection.close()
call, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
if child := os.fork():
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.send(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
folder, environment, sys.argv = json.loads(call)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
main()
"""


@contextmanager
def preloaded(env: dict[str, str], python: str = sys.executable) -> Iterator[dict[str, str]]:
    """Yield an environment whose `nmt` behaves like that of an interpreter, and starts at once."""
    with TemporaryDirectory(prefix="nmt") as folder:  # its name is short enough for a socket
        address, program = f"{folder}/socket", Path(folder, "nmt")
        program.write_text(CLIENT.format(python=python, address=address), encoding="utf-8")
        program.chmod(0o755)
        command = [python, "-P", "-c", SERVER, address]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            with limited(server):
                assert server.stdout.readline() == b"\n"
            try:
                yield env | {"PATH": f"{folder}{os.pathsep}{env['PATH']}"}
            finally:
                server.kill()
