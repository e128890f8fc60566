"""The routes of jobs. Starting a job is the only request of the console that changes anything. Its
route exists only if --allow-changes is given."""

from __future__ import annotations

import hmac

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from isotherm.console.jobs import JobReports, JobRunner, new_token
from isotherm.errors import InvalidRequestError

TOKEN_HEADER = "x-csrf-token"  # noqa: S105
_ACCEPTED, _FORBIDDEN, _CONFLICT, _UNREADABLE = 202, 403, 409, 500


def job_routes(reports: JobReports, runner: JobRunner | None) -> list[Route]:
    pages = _JobPages(reports, runner)
    routes = [Route("/api/jobs", pages.jobs), Route("/api/jobs/reports/{name}", pages.report)]
    if runner is not None:
        routes.append(Route("/api/jobs/{job}", pages.start, methods=["POST"]))
    return routes


class _JobPages:
    """The handlers of requests.

    They are plain functions, so the server calls each in a thread, and may block.
    """

    def __init__(self, reports: JobReports, runner: JobRunner | None) -> None:
        self._reports = reports
        self._runner = runner
        self._token = new_token()

    def jobs(self, _: Request) -> Response:
        runner = self._runner
        try:
            newest = self._reports.newest()
        except OSError as error:
            raise HTTPException(_UNREADABLE, f"the reports cannot be read: {error}") from error
        return JSONResponse(
            {
                "reports": newest,
                "running": None if runner is None else runner.running,
                "startable": [] if runner is None else runner.startable,
                "token": None if runner is None else self._token,
            }
        )

    def report(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            report = self._reports.report(name)
        except OSError as error:
            raise HTTPException(_UNREADABLE, f"the report cannot be read: {error}") from error
        if report is None:
            raise HTTPException(404, f"no such report: {name}")
        return JSONResponse(report)

    def start(self, request: Request) -> Response:
        assert self._runner is not None
        if not hmac.compare_digest(
            request.headers.get(TOKEN_HEADER, "").encode("latin-1"), self._token.encode()
        ):
            raise HTTPException(_FORBIDDEN, "the token of this console is missing: open its page")
        try:
            self._runner.start(request.path_params["job"])
        except InvalidRequestError as error:
            raise HTTPException(_CONFLICT, str(error)) from error
        except OSError as error:
            raise HTTPException(_UNREADABLE, f"the job cannot be started: {error}") from error
        return JSONResponse({"running": self._runner.running}, _ACCEPTED)
