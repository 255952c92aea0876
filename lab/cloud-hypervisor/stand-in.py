#!/usr/bin/python3
"""A stand-in for cloud-hypervisor: it runs no guest.

It answers the part of Cloud Hypervisor's REST API that libvirt's ch driver uses, keeps the state
that a guest would have, writes the events, and has a thread for each vCPU and a terminal for each
console. libvirt above it is the real one. It stands in because no Debian package has the real
program, and because the machine of a lab may have no KVM.
"""

import fcntl
import json
import os
import pty
import signal
import socket
import sys
import threading
import time
import tty

# libvirt reads up to the hyphen. From 40 on it uses all that it knows of Cloud Hypervisor.
VERSION = "45.0.0"
VERSION_LINE = f"cloud-hypervisor v{VERSION}-stand-in-without-guests"

API = "/api/v1/"


class Refused(Exception):
    """A request that makes no sense in the state of the guest."""


class Events:
    """The event monitor: JSON documents in a pipe that libvirt reads."""

    def __init__(self, path):
        # Waits until libvirt opens its end.
        self.pipe = open(path, "w") if path else None
        self.begun = time.monotonic()

    def send(self, source, event):
        if not self.pipe:
            return
        nanos = int((time.monotonic() - self.begun) * 1e9)
        document = {
            "timestamp": {"secs": nanos // 10**9, "nanos": nanos % 10**9},
            "source": source,
            "event": event,
            "properties": None,
        }
        try:
            self.pipe.write(json.dumps(document, indent=2) + "\n\n")
            self.pipe.flush()
        except BrokenPipeError:
            # libvirtd has ended. As with the original, the guest runs on.
            self.pipe = None


def end_with(path):
    """Ends this process when a file is deleted.

    libvirt 11.3 deletes the pipe's file when it destroys a domain, and that is all that can be
    seen here: it kills only children of its own, which this is not, and the pipe stays open for
    as long as libvirt's thread waits in it. The original would run on.
    """
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_DELETE | fcntl.DN_MULTISHOT)
    except OSError as reason:
        print(f"destroyed domains leave this process behind: {reason}", file=sys.stderr)
        return
    while os.path.exists(path):
        signal.sigwait([signal.SIGIO])
    os._exit(0)


class Machine:
    """The guest that is not there."""

    def __init__(self, events):
        self.events = events
        self.config = None
        self.state = None
        self.tap_devices = []
        self.running = threading.Event()
        events.send("vmm", "starting")

    # What libvirt asks for: `vm.add-net` is the method vm_add_net, and so on. Each returns what
    # goes into the body of the answer, or nothing.

    def vmm_ping(self, _body, _descriptors):
        return {
            "build_version": "v" + VERSION,
            "version": VERSION,
            "pid": os.getpid(),
            "features": [],
        }

    def vmm_shutdown(self, _body, _descriptors):
        self.events.send("vmm", "shutdown")

    def vm_create(self, body, _descriptors):
        self.expect(None)
        self.config = json.loads(body)
        self.config.setdefault("net", [])
        self.state = "Created"

    def vm_delete(self, _body, _descriptors):
        self.expect("Created", "Running", "Paused")
        self.stop()
        self.config = self.state = None
        self.events.send("vm", "deleted")

    def vm_info(self, _body, _descriptors):
        self.expect("Created", "Running", "Paused")
        size = self.config.get("memory", {}).get("size", 0)
        return {"config": self.config, "state": self.state, "memory_actual_size": size}

    def vm_boot(self, _body, _descriptors):
        self.expect("Created")
        self.events.send("vm", "booting")
        self.power_on()
        self.events.send("vm", "booted")

    def vm_shutdown(self, _body, _descriptors):
        self.expect("Running", "Paused")
        self.stop()
        self.events.send("vm", "shutdown")

    def vm_reboot(self, _body, _descriptors):
        self.expect("Running", "Paused")
        self.events.send("vm", "rebooting")
        self.state = "Running"
        self.events.send("vm", "rebooted")

    def vm_pause(self, _body, _descriptors):
        self.expect("Running")
        self.events.send("vm", "pausing")
        self.state = "Paused"
        self.events.send("vm", "paused")

    def vm_resume(self, _body, _descriptors):
        self.expect("Paused")
        self.events.send("vm", "resuming")
        self.state = "Running"
        self.events.send("vm", "resumed")

    def vm_add_net(self, body, descriptors):
        self.expect("Created", "Running", "Paused")
        device = json.loads(body)
        self.config["net"].append(device)
        # Held open: the tap device has a carrier only as long as somebody has it.
        self.tap_devices += descriptors
        if self.state != "Created":
            slot = len(self.config["net"])
            return {"id": device.get("id"), "bdf": f"0000:00:{slot:02x}.0"}

    def vm_snapshot(self, body, _descriptors):
        self.expect("Paused")
        self.events.send("vm", "snapshotting")
        directory = json.loads(body)["destination_url"].removeprefix("file://")
        with open(os.path.join(directory, "config.json"), "w") as file:
            json.dump(self.config, file)
        self.events.send("vm", "snapshotted")

    def expect(self, *states):
        if self.state not in states:
            raise Refused(f"the machine is {self.state or 'not created'}")

    def power_on(self):
        self.running = threading.Event()
        # libvirt finds the vCPUs by the names of threads, and pins them.
        for number in range(self.config.get("cpus", {}).get("boot_vcpus", 1)):
            start_thread(f"vcpu{number}", self.running.wait)
        for device in ("console", "serial"):
            settings = self.config.get(device)
            if settings and settings.get("mode") == "Pty":
                settings["file"] = terminal(device)
        self.state = "Running"

    def stop(self):
        self.running.set()
        for descriptor in self.tap_devices:
            os.close(descriptor)
        self.tap_devices = []
        self.config["net"] = []
        # As in the original: what was created stays until it is deleted.
        self.state = "Created"


def start_thread(name, work, *arguments):
    """Starts a thread that carries its name in /proc, and waits until it does."""
    named = threading.Event()

    def body():
        with open("/proc/thread-self/comm", "w") as comm:
            comm.write(name)
        named.set()
        work(*arguments)

    threading.Thread(target=body, daemon=True).start()
    named.wait()


def terminal(device):
    """A terminal that says what it is and repeats what is typed; returns its path."""
    ours, theirs = pty.openpty()
    # Else the terminal would send back to us what we write.
    tty.setraw(theirs)
    path = os.ttyname(theirs)
    os.write(ours, b"This is a stand-in for Cloud Hypervisor: no guest runs here.\r\n")

    def repeat():
        # `theirs` stays open, so there is no end to read.
        while True:
            os.write(ours, os.read(ours, 4096))

    start_thread(device, repeat)
    return path


def serve(connection, machine, lock):
    """Answers the requests of one connection, one after the other."""
    received, descriptors = b"", []

    def receive():
        nonlocal received
        data, new, _flags, _address = socket.recv_fds(connection, 65536, 16)
        received += data
        descriptors.extend(new)
        return bool(data)

    with connection:
        while True:
            while b"\r\n\r\n" not in received:
                if not receive():
                    return
            head, received = received.split(b"\r\n\r\n", 1)
            request, *fields = head.decode().split("\r\n")
            fields = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
            if fields.get("expect") == "100-continue":
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(fields.get("content-length", 0))
            while len(received) < length:
                if not receive():
                    return
            body, received = received[:length], received[length:]
            name = request.split(" ")[1].removeprefix(API)
            with lock:
                answer = handle(machine, name, body, descriptors)
            descriptors = []
            # In one piece: libvirt reads some answers with a single call.
            connection.sendall(answer)
            if name == "vmm.shutdown":
                os._exit(0)


def handle(machine, name, body, descriptors):
    """The answer to one request, as bytes."""
    print(name, body.decode(errors="replace"), file=sys.stderr, flush=True)
    method = getattr(machine, name.replace(".", "_").replace("-", "_"), None)
    if not name.startswith(("vm.", "vmm.")) or method is None:
        return response("404 Not Found", [f"the stand-in does not know {name}"])
    try:
        content = method(body, descriptors)
    except Refused as reason:
        return response("500 Internal Server Error", [f"{name}: {reason}"])
    except (OSError, ValueError, KeyError) as reason:
        return response("400 Bad Request", [f"{name}: {reason!r}"])
    return response("204 No Content" if content is None else "200 OK", content)


def response(status, content):
    body = b"" if content is None else json.dumps(content).encode()
    head = f"HTTP/1.1 {status}\r\nServer: stand-in\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def option(name, key):
    """The value of `--NAME KEY=VALUE`."""
    if name not in sys.argv:
        return None
    argument = sys.argv[sys.argv.index(name) + 1]
    return argument.removeprefix(key + "=")


def main():
    if "--version" in sys.argv or "-V" in sys.argv:
        print(VERSION_LINE)
        return
    descriptor = option("--api-socket", "fd")
    if descriptor is None or not descriptor.isdigit():
        sys.exit("usage: cloud-hypervisor --api-socket fd=NUMBER [--event-monitor path=PIPE]")
    listener = socket.socket(fileno=int(descriptor))
    events = option("--event-monitor", "path")
    if events:
        # Blocked in all threads, so that the one that waits for it gets it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
        start_thread("end-with", end_with, events)
    machine = Machine(Events(events))
    lock = threading.Lock()
    while True:
        connection, _address = listener.accept()
        arguments = (connection, machine, lock)
        threading.Thread(target=serve, args=arguments, daemon=True).start()


main()
