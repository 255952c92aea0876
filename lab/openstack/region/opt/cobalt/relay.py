"""relay.py: Nova's way to the database of its cell, from port 3307 to MariaDB.

All databases are in one MariaDB. This process stands for the server of the cell's database: while
it is dead or stopped the cell has no database, and everybody else has theirs.
"""

import asyncio

import notify

LISTEN, DATABASE = ('127.0.0.1', 3307), ('127.0.0.1', 3306)


async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        # Either end is gone: so is the connection.
        pass
    writer.close()


async def relay(reader, writer):
    try:
        answers, requests = await asyncio.open_connection(*DATABASE)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, requests), pump(answers, writer))


async def main():
    server = await asyncio.start_server(relay, *LISTEN)
    notify.ready()
    await server.serve_forever()


if __name__ == '__main__':
    asyncio.run(main())
