"""The routes of a thread's steps and status, and of resuming after a crash.

A part of the table in `shoal.api.routes`.
"""

from __future__ import annotations

from shoal.api.http.exchange import ReadQuery, WriteQuery
from shoal.api.route import THREAD, Route
from shoal.api.thread import resume, steps
from shoal.errors import DriftRefused, NoQuorum, NotFound, StepSettled, ThreadHeld

STEP_ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        f"{THREAD}/steps/{{step}}",
        steps.begin,
        "Write a step's intent (201), or read why it is not to begin (200: do not cause the effect)",
        steps.StepView,
        201,
        steps.BeginBody,
        steps.BeginQuery,
        repeats=True,
        errors=(ThreadHeld,),
    ),
    Route(
        "PUT",
        f"{THREAD}/steps/{{step}}",
        steps.end,
        "Write a step's result, error or progress",
        steps.StepView,
        body=steps.EndBody,
        query=WriteQuery,
        errors=(NotFound, StepSettled),
    ),
    Route("GET", f"{THREAD}/steps/{{step}}", steps.read, "A step", steps.StepView, query=ReadQuery, errors=(NotFound,)),
    Route(
        "POST",
        f"{THREAD}/steps/{{step}}/resolve",
        steps.resolve,
        "Settle a step whose outcome is unknown",
        steps.StepView,
        body=steps.ResolveBody,
        query=WriteQuery,
        errors=(NotFound, StepSettled),
    ),
    Route(
        "GET",
        f"{THREAD}/steps",
        steps.listing,
        "Steps in the order of their first intents",
        steps.StepsView,
        query=steps.StepsQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/resume",
        resume.resume,
        "The newest state by quorum, the open steps, the journal since, and why",
        resume.ResumeView,
        query=resume.ResumeQuery,
        errors=(NotFound, DriftRefused, NoQuorum),
    ),
    Route("GET", f"{THREAD}/status", steps.status, "The thread's status", steps.StandingView, query=ReadQuery),
    Route(
        "PUT",
        f"{THREAD}/status",
        steps.set_status,
        "Set the thread's status",
        steps.StandingView,
        body=steps.StatusBody,
        query=WriteQuery,
        errors=(NotFound,),
    ),
    Route(
        "POST",
        f"{THREAD}/pause",
        steps.pause,
        "Hold the thread's steps",
        steps.StandingView,
        body=steps.MoveBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/approve",
        steps.approve,
        "Let the thread's steps continue",
        steps.StandingView,
        body=steps.MoveBody,
        query=WriteQuery,
    ),
)
