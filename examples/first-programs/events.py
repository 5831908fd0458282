"""
A log of events behind HTTP, with FastAPI.

    uvicorn events:app
    curl --data 'an event' localhost:8000/events
    curl localhost:8000/events/0
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request, Response

import dledger


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The log belongs to the event loop of the server: open it there."""
    async with dledger.AsyncLog(os.environ["DLEDGER_PEERS"]) as log:
        app.state.log = log
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events")
async def append(request: Request) -> dict[str, int]:
    """Answer when a majority of the members holds the event."""
    try:
        placed = await request.app.state.log.append(await request.body())
    except dledger.AppendFailed as error:
        raise HTTPException(503, f"the event is not in the log: {error}") from error
    except dledger.UnknownOutcome as error:
        raise HTTPException(504, f"the event may be in the log: read it, then try again: {error}") from error
    return {"index": placed.index}


@app.get("/events/{index}")
async def read(request: Request, index: int) -> Response:
    """One event."""
    try:
        entry = await request.app.state.log.get(index)
    except dledger.NotYet as error:
        raise HTTPException(404, "no such event yet") from error
    except dledger.Expired as error:
        raise HTTPException(410, "the event has expired") from error
    return Response(entry.body)
