"""Makes the in-process message bus wait for messages.

oslo.messaging's in-memory driver looks for messages every 50 ms, in two threads per host. That is
both slow (each call waits) and busy (with 50 hosts, a core). Here a message wakes its listener.
"""
import threading
import time

from oslo_messaging._drivers import base, impl_fake


class Listener(impl_fake.FakeListener):

    def __init__(self, exchange_manager, targets, pool=None):
        super().__init__(exchange_manager, targets, pool)
        self.news = threading.Event()
        for target in targets:
            exchange_manager.get_exchange(target.exchange).subscribe(target, self.news)

    @base.batch_poll_helper
    def poll(self, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._stopped.is_set():
            # Before the look into the queues: what comes later is news again.
            self.news.clear()
            for target in self._targets:
                exchange = self._exchange_manager.get_exchange(target.exchange)
                context, message, reply, requeue = exchange.poll(target, self._pool)
                if message is not None:
                    return impl_fake.FakeIncomingMessage(context, message, reply, requeue)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self.news.wait(left)
        return None

    def stop(self):
        super().stop()
        for target in self._targets:
            exchange = self._exchange_manager.get_exchange(target.exchange)
            exchange.unsubscribe(target, self.news)
        self.news.set()


class Exchange(impl_fake.FakeExchange):

    def __init__(self, name):
        super().__init__(name)
        self.listeners = {}

    def subscribe(self, target, news):
        with self._queues_lock:
            self.listeners.setdefault((target.topic, target.server), []).append(news)

    def unsubscribe(self, target, news):
        with self._queues_lock:
            self.listeners[target.topic, target.server].remove(news)

    def deliver_message(self, topic, ctxt, message, server=None, fanout=False, reply_q=None):
        super().deliver_message(topic, ctxt, message, server, fanout, reply_q)
        with self._queues_lock:
            for (listened, name), events in self.listeners.items():
                if listened == topic and (fanout or name == server):
                    for news in events:
                        news.set()


impl_fake.FakeListener = Listener
impl_fake.FakeExchange = Exchange
