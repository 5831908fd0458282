"""
The client of a group. It has three faces: L{blocking}, for programs with Deferreds L{client}, and for asyncio
L{aio}.
"""
