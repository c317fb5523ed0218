from .chat import Chat as Chat
from .chat import terminal_lines as terminal_lines
from .chat_model import ChatModel as ChatModel
from .dispatch import BUILT_IN as BUILT_IN
from .dispatch import main as main
from .launch import launch_configs as launch_configs
from .launch import launch_words as launch_words
