from .client import Hub as Hub
from .client import connect as connect
from .commit import or_finish as or_finish
from .commit import push_listed as push_listed
from .download import pull as pull
from .publishing import Published as Published
from .publishing import publish as publish
from .upload_set import UploadSet as UploadSet
