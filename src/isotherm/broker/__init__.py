# Before any module of the broker imports a message of kio, whichever is imported first.
import isotherm.protocol.kio_alone  # noqa: F401
