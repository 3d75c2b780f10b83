"""The same problem in Archipel and in a peer, method by method: are their accuracy curves alike?"""
