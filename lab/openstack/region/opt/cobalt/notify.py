"""Telling systemd, and hearing in its place, that a service is ready."""

import os
import socket
import subprocess
import sys
import time


def ready():
    address = os.environ.get('NOTIFY_SOCKET')
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        # A leading @ stands for the abstract name space.
        out.sendto(b'READY=1', '\0' + address[1:] if address[0] == '@' else address)


def start(command, seconds):
    """Starts a service and returns when it is ready; ends the program when it cannot be."""
    address = f'/run/notify-{os.path.basename(command[-1])}'
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(address)
        # The service may be another user.
        os.chmod(address, 0o777)
        # Wakes up now and then to see whether the service still runs.
        inbox.settimeout(0.5)
        process = subprocess.Popen(command, env={**os.environ, 'NOTIFY_SOCKET': address})
        while process.poll() is None and time.monotonic() < end:
            try:
                if b'READY=1' in inbox.recv(4096).split(b'\n'):
                    return process
            except TimeoutError:
                pass
    sys.exit(f'not ready within {seconds} s or ended: {" ".join(command)}')
