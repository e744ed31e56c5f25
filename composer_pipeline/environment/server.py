"""The traces of a lake as an OpenEnv server.

Belongs here: OpenEnv's types around an episode, and serving them. Does not belong here: episodes
(``environment.episode``) and the client (``environment.client``). Importing this module imports
openenv, which takes seconds.
"""

import socket
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from openenv.core import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from composer_pipeline.environment.recorded import Episode, Trace, Traces
from composer_pipeline.errors import InputError

#: Episodes at a time. One is a few texts in memory; a trainer keeps one for each rollout.
MOST_EPISODES = 1024


class TraceAction(Action):
    """One tool call."""

    name: str = Field(description="The tool, as the tools of the reset name it.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="The call's arguments.")


class TraceObservation(Observation):
    """What a reset or a step shows."""

    result: str | None = Field(None, description="Recorded result; null where none was recorded.")
    text: str = Field("", description="What happened, where there is no result.")
    messages: list[dict[str, Any]] | None = Field(None, description="Of a reset: the prefix.")
    tools: list[dict[str, Any]] | None = Field(None, description="Of a reset: the tools offered.")


class EpisodeState(State):
    """How far an episode is."""

    state_id: str = Field("", description="The state that it began with.")
    session_id: str = Field("", description="The state's session.")
    turn: int = Field(0, description="Turns of the trace that were taken.")
    turns: int = Field(0, description="Turns of the trace.")
    total_reward: float = Field(0.0, description="Rewards of all steps.")


class TraceEnvironment(Environment[TraceAction, TraceObservation, EpisodeState]):
    """Replays recorded sessions; see :class:`composer_pipeline.environment.Episode`.

    Args:
        traces: which; environments share them.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, traces: Traces) -> None:
        super().__init__()
        self._traces = traces
        self._trace: Trace | None = None
        self._episode: Episode | None = None
        self._id = ""

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        state_id: str = "",
        session: str = "",
        **other: Any,
    ) -> TraceObservation:
        """Begin an episode and return the prefix and the tools offered.

        Args:
            seed: draws a trace where neither state nor session is named.
            episode_id: a name for the episode.
            state_id: the state to begin with.
            session: id of the session whose first trace is taken; OpenEnv's server has a
                ``session_id`` of its own.
            other: not used.

        Raises:
            InputError: nothing served has this name, or nothing can be replayed from it.
        """
        if state_id:
            trace = self._traces.at(state_id)
        elif session:
            trace = self._traces.of_session(session)
        else:
            trace = self._traces.drawn(seed)
        self._trace, self._episode = trace, Episode(trace.turns)
        self._id = episode_id or uuid4().hex
        return TraceObservation(messages=trace.messages, tools=trace.tools)

    def step(
        self, action: TraceAction, timeout_s: float | None = None, **other: Any
    ) -> TraceObservation:
        """Take one call.

        Args:
            action: the call.
            timeout_s: not used: nothing is run.
            other: not used.

        Raises:
            InputError: there was no reset.
        """
        if self._episode is None:
            raise InputError("reset the environment before the first step")
        done = self._episode.step(action.name, action.arguments)
        return TraceObservation(
            done=done.done, reward=done.reward, result=done.result, text=done.text
        )

    @property
    def state(self) -> EpisodeState:
        """How far the episode is; nothing of what the trace holds."""
        if self._episode is None or self._trace is None:
            return EpisodeState()
        return EpisodeState(
            episode_id=self._id,
            step_count=self._episode.steps,
            state_id=self._trace.state_id,
            session_id=self._trace.session_id,
            turn=self._episode.turn,
            turns=len(self._trace.turns),
            total_reward=self._episode.total,
        )


def application(traces: Traces) -> Any:
    """Return the FastAPI application that serves traces."""
    return create_fastapi_app(
        lambda: TraceEnvironment(traces),
        TraceAction,
        TraceObservation,
        state_cls=EpisodeState,
        max_concurrent_envs=MOST_EPISODES,
        env_name="composer_pipeline",
    )


def serve(
    traces: Traces, listener: socket.socket, begun: Callable[[], None] = lambda: None
) -> None:
    """Serve traces until the process is told to end.

    Args:
        traces: which.
        listener: the bound socket.
        begun: called when the application is made, before the first request is taken.
    """
    import uvicorn

    app = application(traces)
    begun()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
