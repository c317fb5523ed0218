from .chat import chat_turns as chat_turns
from .dispatch import BUILT_IN as BUILT_IN
from .dispatch import main as main
from .launch import launch_configs as launch_configs
from .launcher import launch_words as launch_words
from .publish import publish_main as publish_main
