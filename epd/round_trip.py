"""A round trip to a Redis server on a connection of redis-py's pool, without redis-py's pipeline.

A pipeline makes some two hundred function calls for one command. In a process that is busy with other things
this is most of what a trip costs, so the frequent trips of store and broker take this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import redis
from hiredis import pack_command
from redis.exceptions import ResponseError

#: The name of a command, and its arguments.
Command = Sequence[str | bytes | int | float]


def round_trip(client: redis.Redis, commands: Sequence[Command]) -> list[Any]:
    """Send commands together, and return their answers in order, in the form that ``client`` gives them.

    The client's own rules apply: its time limits, its check for connections that the server has closed, and
    its retries after a lost connection.

    Args:
        client: gives the connection. Thread-safe, as for its own commands.
        commands: names in upper case.

    Returns:
        One answer for each command. A command that the server refused has its ``ResponseError``.

    Raises:
        redis.RedisError, OSError: the server does not answer. It may have run some of the commands.
    """
    pool: Any = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        return list(
            connection.retry.call_with_retry(
                lambda: _exchange(client, connection, commands), lambda _: connection.disconnect()
            )
        )
    except BaseException:
        connection.disconnect()  # or the next user would read the answers that were not read here
        raise
    finally:
        pool.release(connection)


def _exchange(client: Any, connection: Any, commands: Sequence[Command]) -> list[Any]:
    packed = b"".join([pack_command(cast(Any, tuple(command))) for command in commands])
    connection.send_packed_command([packed])
    return [_answer(client, connection, command[0]) for command in commands]


def _answer(client: Any, connection: Any, name: Any) -> Any:
    try:
        answer = connection.read_response()
    except ResponseError as error:
        return error
    convert = client.response_callbacks.get(name)
    return answer if convert is None else convert(answer)
