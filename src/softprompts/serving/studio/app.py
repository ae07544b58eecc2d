"""The studio's routes: pages made on the server, in the same application as the API.

Nothing comes from outside the server: its Content-Security-Policy forbids it. Pages work without
JavaScript; `studio.js` saves loading whole pages, and follows runs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from ...artifacts.run_folder import RunFolder
from ...errors import UserError, speaking
from ..async_engine import AsyncEngine
from ..http_errors import HttpError, as_http
from ..requests import MIB, UnknownPrompt
from . import (
    library_page,
    map_page,
    playground,
    prompt_page,
    sources_page,
    studies_page,
    tune_page,
)
from .context import Page, Studio, Visit
from .markup import ROOT, link, notice, page
from .spelling import as_field
from .tuning_runs import TuningRuns

Show = Callable[[Studio, Visit], Awaitable[Page | Response]]
STATIC = Path(__file__).parent / "static"
STATIC_FILES = {
    "studio.css": "text/css",
    "studio.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
FRAGMENT = "x-fragment"
"""The header with which `studio.js` asks for a page without its frame."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without any, browsers hide the origin of forms
    "Cache-Control": "no-store",
    "Vary": FRAGMENT,
}
ROUTES: dict[str, Show] = {
    "GET ": library_page.show,
    "GET /map": map_page.show,
    "GET /playground": playground.show,
    "POST /playground": playground.show,
    "GET /sources": sources_page.show,
    "POST /sources": sources_page.show,
    "GET /studies": studies_page.show,
    "GET /studies/{name}": studies_page.show_study,
    "GET /studies/{name}/figures/{number:int}": studies_page.figure,
    "GET /tune": tune_page.show,
    "POST /tune": tune_page.upload,
    "GET /tune/{name}": tune_page.show_run,
    "POST /tune/{name}/again": tune_page.again,
    "POST /tune/{name}/start": tune_page.start,
    "POST /tune/{name}/stop": tune_page.stop,
    "POST /tune/{name}/remove": tune_page.remove,
    "GET /prompts/{name:path}/words": prompt_page.words,
    "GET /prompts/{name:path}/errors": prompt_page.errors,
    "GET /prompts/{name:path}/similar": prompt_page.similar,
    "GET /prompts/{name:path}": prompt_page.show,
}

ABOUT_ALL = ("/studies", "/tune")
"""The pages that a key of some prompts may not see."""


def build(
    engine: AsyncEngine,
    *,
    studies: str | Path | Sequence[str | Path] = (),
    timeout: float = 60.0,
    max_body: int = 4 * MIB,
) -> APIRouter:
    """The studio of an engine's prompts at `/studio`, for an application of `create_app`:

        app = create_app(engine)
        app.include_router(build(engine, studies="runs"))

    `studies`: folders of studies, or that hold some. `timeout`: seconds for an answer. `max_body`:
    bytes of an upload, as `create_app` allows them. Prompts that are tuned in the studio go into
    the engine's first library.
    """
    folders = [studies] if isinstance(studies, str | Path) else studies
    libraries = [folder for folder in engine.store.folders if not RunFolder(folder).has_prompt]
    runs = TuningRuns(libraries[0] if libraries else None)
    studio = Studio(engine, timeout, [Path(folder) for folder in folders], runs, max_body)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await runs.close()

    router = APIRouter(prefix=ROOT, lifespan=lifespan, include_in_schema=False)
    router.add_api_route("/static/{file}", _static, response_model=None)
    for route, show in ROUTES.items():
        method, path = route.split(" ")
        endpoint = _endpoint(studio, show, path.startswith(ABOUT_ALL))
        router.add_api_route(path, endpoint, methods=[method], response_model=None)
    return router


async def _static(file: str) -> Response:
    if file not in STATIC_FILES:
        raise HttpError(404, "There is no such file.")
    headers = {**HEADERS, "Cache-Control": "no-cache"}  # asks whether it has changed
    return FileResponse(STATIC / file, media_type=STATIC_FILES[file], headers=headers)


def _endpoint(
    studio: Studio, show: Show, about_all: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        with speaking(as_field):
            return await respond(request)

    async def respond(request: Request) -> Response:
        try:
            visit = await Visit.of(request)
            if about_all and not visit.unrestricted:
                message = "This page covers all prompts, but this key may use only some."
                raise HttpError(403, message)
            shown = await show(studio, visit)
        except (UserError, HttpError) as error:
            name = str(request.path_params.get("name", ""))
            http = error if isinstance(error, HttpError) else as_http(error, name)
            body = notice(str(http.detail), error=True)
            if isinstance(error, UnknownPrompt):
                library = link(ROOT, "see the library")
                body = notice(f"There is no prompt {name[:100]!r}; ", library, ".", error=True)
            shown = Page("Something went wrong", body, status=http.status_code)
        if isinstance(shown, Response):
            return shown
        fragment = FRAGMENT in request.headers
        content = shown.body if fragment else page(shown.title, shown.body, current=shown.current)
        return HTMLResponse(content, shown.status, HEADERS)

    return endpoint
