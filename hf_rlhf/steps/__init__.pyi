from .digests import differences as differences
from .digests import digest as digest
from .digests import file_digest as file_digest
from .digests import file_digests as file_digests
from .ledger import Ledger as Ledger
from .ledger import Recording as Recording
from .parts import PartFiles as PartFiles
