from archipel.cli import main

main()
