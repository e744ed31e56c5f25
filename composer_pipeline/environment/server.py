"""The traces of a lake as an OpenEnv server; importing openenv takes seconds."""

import socket
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from openenv.core import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from composer_pipeline.environment.recorded import Episode, Trace, Traces
from composer_pipeline.errors import InputError

#: Concurrent episodes. One is a few texts in memory; a trainer keeps one for each rollout.
MAX_EPISODES = 1024


class TraceAction(Action):
    """One tool call."""

    name: str = Field(description="The tool's name, as in the tools of the reset.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="The call's arguments.")


class TraceObservation(Observation):
    """The observation of a reset or a step."""

    result: str | None = Field(None, description="Recorded result; null where none was recorded.")
    text: str = Field("", description="What happened if there is no result.")
    messages: list[dict[str, Any]] | None = Field(None, description="Of a reset: the prompt.")
    tools: list[dict[str, Any]] | None = Field(None, description="Of a reset: the tools offered.")


class EpisodeState(State):
    """The progress of an episode."""

    state_id: str = Field("", description="The state at which it began.")
    session_id: str = Field("", description="The state's session.")
    turn: int = Field(0, description="Completed turns of the trace.")
    turns: int = Field(0, description="Turns of the trace.")
    total_reward: float = Field(0.0, description="Sum of the rewards.")


class TraceEnvironment(Environment[TraceAction, TraceObservation, EpisodeState]):
    """Replays recorded sessions; see :class:`~composer_pipeline.environment.recorded.Episode`."""

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
        """Begin an episode and return the prompt and the tools offered.

        ``seed`` draws a trace where neither state nor session is given. OpenEnv's server has a
        ``session_id`` of its own, hence the name ``session``.
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
        """Take one call."""
        if self._episode is None:
            raise InputError("reset the environment before the first step")
        outcome = self._episode.step(action.name, action.arguments)
        return TraceObservation(
            done=outcome.done, reward=outcome.reward, result=outcome.result, text=outcome.text
        )

    @property
    def state(self) -> EpisodeState:
        """The progress of the episode, without the content of its trace."""
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


def serve(
    traces: Traces, listener: socket.socket, started: Callable[[], None] = lambda: None
) -> None:
    """Serve traces on a bound socket until the process ends; ``started`` is called before."""
    import uvicorn

    app = create_fastapi_app(
        lambda: TraceEnvironment(traces),
        TraceAction,
        TraceObservation,
        state_cls=EpisodeState,
        max_concurrent_envs=MAX_EPISODES,
        env_name="composer_pipeline",
    )
    started()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
